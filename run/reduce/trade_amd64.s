#include "textflag.h"

// The registers of a trade: see Trade.
//
//	SI  In    read                  R10 Own   read
//	DI  Slot  written               BX  Sum   to be written, fetched
//	R9  Kept  written past caches   R8  Other to be read and written, fetched
//	DX  Out   written               R11 Saved written past caches
//	AX  Back  read                  CX  pairs of lines
//	R12 and R13, where the sum is computed as well: Own and Other, first the first operand
//
// PREFETCHW of 512 bytes and more behind BX, R8, DX and AX, which the assembler has
// no name for. Processors that do not know it do nothing.
#define FETCHW_BX(at) BYTE $0x0F; BYTE $0x0D; BYTE $0x8B; LONG $(512+at)
#define FETCHW_R8(at) BYTE $0x41; BYTE $0x0F; BYTE $0x0D; BYTE $0x88; LONG $(512+at)
#define FETCHW_DX(at) BYTE $0x0F; BYTE $0x0D; BYTE $0x8A; LONG $(512+at)
#define FETCHW_AX(at) BYTE $0x0F; BYTE $0x0D; BYTE $0x88; LONG $(512+at)

#define ARGUMENTS \
	MOVQ t+0(FP), CX    \
	MOVQ 0(CX), SI      \
	MOVQ 8(CX), DI      \
	MOVQ 16(CX), R9     \
	MOVQ 24(CX), R10    \
	MOVQ 32(CX), BX     \
	MOVQ 40(CX), R8     \
	MOVQ 48(CX), R11    \
	MOVQ 56(CX), DX     \
	MOVQ 64(CX), AX     \
	MOVQ 72(CX), R12    \
	MOVQ 80(CX), R13    \
	MOVQ pairs+8(FP), CX

#define FETCH \
	PREFETCHT0 512(SI)  \
	FETCHW_R8(0)        \
	PREFETCHT0 512(R10) \
	FETCHW_BX(0)        \
	FETCHW_AX(0)        \
	FETCHW_DX(0)        \
	PREFETCHT0 576(SI)  \
	FETCHW_R8(64)       \
	PREFETCHT0 576(R10) \
	FETCHW_BX(64)       \
	FETCHW_AX(64)       \
	FETCHW_DX(64)

#define ADVANCE \
	ADDQ $128, SI  \
	ADDQ $128, DI  \
	ADDQ $128, R9  \
	ADDQ $128, R10 \
	ADDQ $128, BX  \
	ADDQ $128, R8  \
	ADDQ $128, R11 \
	ADDQ $128, DX  \
	ADDQ $128, AX  \
	DECQ CX

// func tradeAVX512(t *Trade, pairs int)
TEXT ·tradeAVX512(SB), NOSPLIT, $0-16
	ARGUMENTS
	TESTQ R9, R9
	JZ    bare

loop:
	FETCH
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 Z0, (DI)
	VMOVDQU64 Z1, 64(DI)
	VMOVNTDQ  Z0, (R9)
	VMOVNTDQ  Z1, 64(R9)
	VMOVDQU64 (R10), Z2
	VMOVDQU64 64(R10), Z3
	VMOVNTDQ  Z2, (R11)
	VMOVNTDQ  Z3, 64(R11)
	VMOVDQU64 (AX), Z4
	VMOVDQU64 64(AX), Z5
	VMOVDQU64 Z4, (DX)
	VMOVDQU64 Z5, 64(DX)
	ADVANCE
	JNZ       loop
	VZEROUPPER
	RET

bare:
	FETCH
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 Z0, (DI)
	VMOVDQU64 Z1, 64(DI)
	VMOVDQU64 (AX), Z4
	VMOVDQU64 64(AX), Z5
	VMOVDQU64 Z4, (DX)
	VMOVDQU64 Z5, 64(DX)
	ADVANCE
	JNZ       bare
	VZEROUPPER
	RET

// func tradeAVX2(t *Trade, pairs int)
TEXT ·tradeAVX2(SB), NOSPLIT, $0-16
	ARGUMENTS
	TESTQ R9, R9
	JZ    bare

loop:
	FETCH
	VMOVDQU  (SI), Y0
	VMOVDQU  32(SI), Y1
	VMOVDQU  64(SI), Y2
	VMOVDQU  96(SI), Y3
	VMOVDQU  Y0, (DI)
	VMOVDQU  Y1, 32(DI)
	VMOVDQU  Y2, 64(DI)
	VMOVDQU  Y3, 96(DI)
	VMOVNTDQ Y0, (R9)
	VMOVNTDQ Y1, 32(R9)
	VMOVNTDQ Y2, 64(R9)
	VMOVNTDQ Y3, 96(R9)
	VMOVDQU  (R10), Y4
	VMOVDQU  32(R10), Y5
	VMOVDQU  64(R10), Y6
	VMOVDQU  96(R10), Y7
	VMOVNTDQ Y4, (R11)
	VMOVNTDQ Y5, 32(R11)
	VMOVNTDQ Y6, 64(R11)
	VMOVNTDQ Y7, 96(R11)
	VMOVDQU  (AX), Y8
	VMOVDQU  32(AX), Y9
	VMOVDQU  64(AX), Y10
	VMOVDQU  96(AX), Y11
	VMOVDQU  Y8, (DX)
	VMOVDQU  Y9, 32(DX)
	VMOVDQU  Y10, 64(DX)
	VMOVDQU  Y11, 96(DX)
	ADVANCE
	JNZ      loop
	VZEROUPPER
	RET

bare:
	FETCH
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 96(SI), Y3
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	VMOVDQU Y2, 64(DI)
	VMOVDQU Y3, 96(DI)
	VMOVDQU (AX), Y8
	VMOVDQU 32(AX), Y9
	VMOVDQU 64(AX), Y10
	VMOVDQU 96(AX), Y11
	VMOVDQU Y8, (DX)
	VMOVDQU Y9, 32(DX)
	VMOVDQU Y10, 64(DX)
	VMOVDQU Y11, 96(DX)
	ADVANCE
	JNZ     bare
	VZEROUPPER
	RET

// All bits of a NaN are set, as in every kernel.
#define NANS_32 \
	VCMPPS     $3, Z6, Z6, K1 \
	VCMPPS     $3, Z7, Z7, K2 \
	VPTERNLOGD $0xff, Z6, Z6, K1, Z6 \
	VPTERNLOGD $0xff, Z7, Z7, K2, Z7
#define NANS_64 \
	VCMPPD     $3, Z6, Z6, K1 \
	VCMPPD     $3, Z7, Z7, K2 \
	VPTERNLOGQ $0xff, Z6, Z6, K1, Z6 \
	VPTERNLOGQ $0xff, Z7, Z7, K2, Z7
#define NANS_NONE

// A trade with its sum, by an instruction that adds two vectors.
#define SUM_512(ADD, NANS) \
	ARGUMENTS                    \
	TESTQ     R9, R9             \
	JZ        bare               \
loop:                            \
	FETCH                        \
	VMOVDQU64 (SI), Z0           \
	VMOVDQU64 64(SI), Z1         \
	VMOVDQU64 Z0, (DI)           \
	VMOVDQU64 Z1, 64(DI)         \
	VMOVNTDQ  Z0, (R9)           \
	VMOVNTDQ  Z1, 64(R9)         \
	VMOVDQU64 (R10), Z2          \
	VMOVDQU64 64(R10), Z3        \
	VMOVNTDQ  Z2, (R11)          \
	VMOVNTDQ  Z3, 64(R11)        \
	VMOVDQU64 (R12), Z6          \
	VMOVDQU64 64(R12), Z7        \
	ADD       (R13), Z6, Z6      \
	ADD       64(R13), Z7, Z7    \
	NANS                         \
	VMOVDQU64 Z6, (BX)           \
	VMOVDQU64 Z7, 64(BX)         \
	VMOVDQU64 Z6, (R8)           \
	VMOVDQU64 Z7, 64(R8)         \
	VMOVDQU64 (AX), Z4           \
	VMOVDQU64 64(AX), Z5         \
	VMOVDQU64 Z4, (DX)           \
	VMOVDQU64 Z5, 64(DX)         \
	ADDQ      $128, R12          \
	ADDQ      $128, R13          \
	ADVANCE                      \
	JNZ       loop               \
	VZEROUPPER                   \
	RET                          \
bare:                            \
	FETCH                        \
	VMOVDQU64 (SI), Z0           \
	VMOVDQU64 64(SI), Z1         \
	VMOVDQU64 Z0, (DI)           \
	VMOVDQU64 Z1, 64(DI)         \
	VMOVDQU64 (R12), Z6          \
	VMOVDQU64 64(R12), Z7        \
	ADD       (R13), Z6, Z6      \
	ADD       64(R13), Z7, Z7    \
	NANS                         \
	VMOVDQU64 Z6, (BX)           \
	VMOVDQU64 Z7, 64(BX)         \
	VMOVDQU64 Z6, (R8)           \
	VMOVDQU64 Z7, 64(R8)         \
	VMOVDQU64 (AX), Z4           \
	VMOVDQU64 64(AX), Z5         \
	VMOVDQU64 Z4, (DX)           \
	VMOVDQU64 Z5, 64(DX)         \
	ADDQ      $128, R12          \
	ADDQ      $128, R13          \
	ADVANCE                      \
	JNZ       bare               \
	VZEROUPPER                   \
	RET

// func tradeFloat32AVX512(t *Trade, pairs int)
TEXT ·tradeFloat32AVX512(SB), NOSPLIT, $0-16
	SUM_512(VADDPS, NANS_32)

// func tradeFloat64AVX512(t *Trade, pairs int)
TEXT ·tradeFloat64AVX512(SB), NOSPLIT, $0-16
	SUM_512(VADDPD, NANS_64)

// func tradeInt32AVX512(t *Trade, pairs int)
TEXT ·tradeInt32AVX512(SB), NOSPLIT, $0-16
	SUM_512(VPADDD, NANS_NONE)

// func tradeInt64AVX512(t *Trade, pairs int)
TEXT ·tradeInt64AVX512(SB), NOSPLIT, $0-16
	SUM_512(VPADDQ, NANS_NONE)
