package probe

// Sample is what the management library says of a GPU now. What it does not know is -1.
type Sample struct {
	Index    int     `json:"gpu"`
	Name     string  `json:"name"`
	UUID     string  `json:"uuid"`
	Bus      string  `json:"bus"`
	Util     float64 `json:"util_percent"`
	Power    float64 `json:"power_watts"`
	Limit    float64 `json:"power_limit_watts"`
	Temp     float64 `json:"temperature"`
	Clock    float64 `json:"sm_clock_mhz"`
	MemUsed  float64 `json:"memory_used_bytes"`
	MemTotal float64 `json:"memory_total_bytes"`
	Throttle int64   `json:"throttle_reasons"` // bits of nvmlClocksEventReasons
	Replays  int64   `json:"pcie_replays"`
	ECC      int64   `json:"ecc_uncorrectable"`
	NVLinks  int64   `json:"nvlinks_active"` // -1 if the GPU has none
}
