package group

// HasCPU says that processors are known by their numbers.
const HasCPU = true

// processor is the number of the one that this runs on, which Linux keeps where an instruction reads it.
func processor() uint32
