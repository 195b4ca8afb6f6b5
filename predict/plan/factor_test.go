package plan

import (
	"strings"
	"testing"
)

// Steps of a time before flash attention say little of those with it: the framework's own on another chip say more.
func TestFactorsOfAnotherTime(t *testing.T) {
	old, _ := FactorFor(Megatron, "A100-SXM-80GB", "bf16", false, false)
	now, from := FactorFor(Megatron, "A100-SXM-80GB", "bf16", false, true)
	hopper, _ := FactorFor(Megatron, "H100-SXM", "bf16", false, true)
	if now != hopper || now == old || !strings.Contains(from, "nothing was measured") {
		t.Errorf("flash attention on A100: %g (%s); without it %g, on H100 %g", now, from, old, hopper)
	}
	if f, from := FactorFor(DeepSpeed, "A100-SXM-80GB", "bf16", false, true); !strings.Contains(from, "deepspeed on A100-80G") {
		t.Errorf("DeepSpeed: %g (%s)", f, from)
	}
}
