package tune

import "slices"

// shape is what NCCL's search finds for one algorithm: the number of channels and
// their speed, inside a node and between nodes, in GB/s.
type shape struct {
	Channels     int
	Intra, Inter float64
	TypeIntra    path
	TypeInter    path
}

const maxChannels = 32 // of the search; the kernel may use twice as many

// searchRing reproduces the outcome of NCCL's ring search: speeds are tried from
// the highest that fits down to half of the first that worked, the first of the
// largest products of channels and speed wins, and fast channels are split in two.
func (f *facts) searchRing() shape {
	s := shape{TypeIntra: f.path, TypeInter: pathPIX}
	list := speeds(f.compute, f.nodes > 1)
	inside := f.inside()
	if f.nodes > 1 {
		s.TypeInter = f.netPath
		if f.medium == overNVLink && s.TypeInter > pathPXN {
			s.TypeInter = pathPXN
		}
	}
	fit := func(speed float64) int {
		within := int(inside / speed)
		if f.perRing > 0 { // direct links: each ring takes whole links
			if speed > f.perRing {
				return 0
			}
			within = f.rings
		}
		if f.nodes == 1 {
			return min(within, maxChannels)
		}
		between := 0
		for _, n := range f.nics {
			between += int(n.speed / speed)
		}
		return min(within, between, maxChannels)
	}
	for i, speed := range list {
		if s.Channels > 0 && speed/s.Intra <= .49 {
			break
		}
		if i > 0 && s.Channels > 0 && float64(s.Channels)*s.Intra >= inside {
			break
		}
		if n := fit(speed); float64(n)*speed > float64(s.Channels)*s.Intra {
			s.Channels, s.Intra, s.Inter = n, speed, speed
		}
	}
	if s.Channels == 0 { // slower than the slowest speed in the list
		s.Channels, s.Intra = 1, list[len(list)-1]
		s.Inter = s.Intra
	}
	return f.duplicate(s)
}

// duplicate splits channels in two where NCCL does: from 25 GB/s a channel, or
// from 50 where the GPUs are newer than Ampere and more than four channels exist.
func (f *facts) duplicate(s shape) shape {
	if s.Intra < 25 || f.compute > 80 && s.Intra < 50 && s.Channels > 4 {
		return s
	}
	twice := min(2*s.Channels, maxChannels)
	factor := float64((twice + s.Channels - 1) / s.Channels)
	s.Intra, s.Inter = s.Intra/factor, s.Inter/factor
	s.Channels = twice
	return s
}

// searchTree keeps the ring's channels. Between nodes a tree may use a larger
// speed inside a node than between them, at most twice: each node passes half of
// the data up one tree and half down the other.
func (f *facts) searchTree(ring shape) shape {
	s := ring
	if f.nodes < 2 || f.medium == alone {
		return s
	}
	for _, speed := range speeds(f.compute, true) {
		if speed > s.Intra && speed <= 2*s.Inter && speed*float64(s.Channels) <= f.inside() {
			s.Intra = speed
			break
		}
	}
	return s
}

// inside is what one GPU's links carry inside the node, as NCCL counts them.
func (f *facts) inside() float64 {
	if f.medium == overNVLink || f.medium == alone {
		return f.total
	}
	return f.pci
}

// searchNVLS gives each GPU (each NIC, between nodes) one head. A GPU's links
// carry every channel once and its own twice.
func (f *facts) searchNVLS() shape {
	if !f.multi || !f.switched || f.compute < 90 || f.perNode < 2 {
		return shape{}
	}
	heads := f.perNode
	if f.nodes > 1 {
		heads = min(heads, len(f.nics))
	}
	if heads == 0 {
		return shape{}
	}
	s := shape{Channels: min(heads, maxChannels), TypeIntra: pathNVL, TypeInter: f.netPath}
	list := speeds(f.compute, f.nodes > 1)
	i := slices.IndexFunc(list, func(v float64) bool {
		if v*float64(s.Channels+1) > f.total {
			return false
		}
		if f.nodes == 1 {
			return true
		}
		return f.nics[0].speed >= v
	})
	if i < 0 {
		return shape{}
	}
	s.Intra, s.Inter = list[i], list[i]
	return s
}
