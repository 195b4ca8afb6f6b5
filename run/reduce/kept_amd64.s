#include "textflag.h"

// All bits of a NaN are set, as in every kernel.
#define NANS_32 \
	VCMPPS     $3, Z0, Z0, K1 \
	VCMPPS     $3, Z1, Z1, K2 \
	VPTERNLOGD $0xff, Z0, Z0, K1, Z0 \
	VPTERNLOGD $0xff, Z1, Z1, K2, Z1
#define NANS_64 \
	VCMPPD     $3, Z0, Z0, K1 \
	VCMPPD     $3, Z1, Z1, K2 \
	VPTERNLOGQ $0xff, Z0, Z0, K1, Z0 \
	VPTERNLOGQ $0xff, Z1, Z1, K2, Z1
#define NANS_NONE

// A sum in place, DI = DI + SI, that stores what was in DI past the caches in R9, by
// an instruction that adds two vectors; CX counts pairs of lines.
#define KEPT_512(ADD, NANS) \
	MOVQ      dst+0(FP), DI      \
	MOVQ      src+8(FP), SI      \
	MOVQ      kept+16(FP), R9    \
	MOVQ      pairs+24(FP), CX   \
loop:                            \
	VMOVDQU64 (DI), Z0           \
	VMOVDQU64 64(DI), Z1         \
	VMOVNTDQ  Z0, (R9)           \
	VMOVNTDQ  Z1, 64(R9)         \
	ADD       (SI), Z0, Z0       \
	ADD       64(SI), Z1, Z1     \
	NANS                         \
	VMOVDQU64 Z0, (DI)           \
	VMOVDQU64 Z1, 64(DI)         \
	ADDQ      $128, DI           \
	ADDQ      $128, SI           \
	ADDQ      $128, R9           \
	DECQ      CX                 \
	JNZ       loop               \
	SFENCE                       \
	VZEROUPPER                   \
	RET

// func keptFloat32AVX512(dst, src, kept *byte, pairs int)
TEXT ·keptFloat32AVX512(SB), NOSPLIT, $0-32
	KEPT_512(VADDPS, NANS_32)

// func keptFloat64AVX512(dst, src, kept *byte, pairs int)
TEXT ·keptFloat64AVX512(SB), NOSPLIT, $0-32
	KEPT_512(VADDPD, NANS_64)

// func keptInt32AVX512(dst, src, kept *byte, pairs int)
TEXT ·keptInt32AVX512(SB), NOSPLIT, $0-32
	KEPT_512(VPADDD, NANS_NONE)

// func keptInt64AVX512(dst, src, kept *byte, pairs int)
TEXT ·keptInt64AVX512(SB), NOSPLIT, $0-32
	KEPT_512(VPADDQ, NANS_NONE)
