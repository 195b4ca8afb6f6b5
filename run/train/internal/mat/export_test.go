package mat

// FMA is the definition's step.
var FMA = fma
