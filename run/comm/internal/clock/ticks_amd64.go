package clock

// Ticks reads the processor's time stamp counter, which on every amd64 processor of the last fifteen years runs at one rate
// and alike on all cores of a host. It takes 10 ns where the clock takes 40, and small operations take 400 in all.
func Ticks() int64
