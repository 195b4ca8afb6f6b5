//go:build !race

#include "textflag.h"

// func look(value *uint64, v uint64, looks, pauses int) bool
TEXT ·look(SB), NOSPLIT, $0-33
	MOVQ value+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ looks+16(FP), CX
	MOVQ pauses+24(FP), DX

plain:
	CMPQ CX, $0
	JLE  paused
	MOVQ (AX), SI
	CMPQ SI, BX
	JAE  yes
	DECQ CX
	JMP  plain

paused:
	CMPQ DX, $0
	JLE  no
	MOVQ (AX), SI
	CMPQ SI, BX
	JAE  yes
	PAUSE
	DECQ DX
	JMP  paused

yes:
	MOVB $1, ret+32(FP)
	RET

no:
	MOVB $0, ret+32(FP)
	RET

// func store(value *uint64, v uint64)
TEXT ·store(SB), NOSPLIT, $0-16
	MOVQ value+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ BX, (AX)
	RET

// func releaseWith(f *Flag, v, first, second uint64)
TEXT ·releaseWith(SB), NOSPLIT, $0-32
	MOVQ f+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ first+16(FP), CX
	MOVQ second+24(FP), DX
	MOVQ CX, 16(AX)
	MOVQ DX, 24(AX)
	MOVQ BX, (AX)
	RET

// func own(line unsafe.Pointer)
TEXT ·own(SB), NOSPLIT, $0-8
	MOVQ line+0(FP), AX
	BYTE $0x0f; BYTE $0x0d; BYTE $0x08 // PREFETCHW (AX)
	RET

// func fetch(line unsafe.Pointer)
TEXT ·fetch(SB), NOSPLIT, $0-8
	MOVQ line+0(FP), AX
	PREFETCHT0 (AX)
	RET
