//go:build linux && !static

#include "textflag.h"

// What UCX calls follows C's convention (arguments in R0 to R7) and enters no Go.

// func sent()
// void sent(void *request, ucs_status_t status, void *slot): stores the status, and frees the request.
TEXT ·sent(SB), NOSPLIT|NOFRAME, $0-0
	STLRW R1, (R2)
	MOVD  8(R2), R3
	JMP   (R3)

// func received()
// void received(void *request, ucs_status_t status, size_t length, void *slot)
TEXT ·received(SB), NOSPLIT|NOFRAME, $0-0
	STLRW R1, (R3)
	MOVD  8(R3), R4
	JMP   (R4)

// func many()
// unsigned many(ucp_worker_h worker, unsigned (*progress)(ucp_worker_h), size_t times): until something moved.
TEXT ·many(SB), NOSPLIT|NOFRAME, $0-0
	SUB  $48, RSP
	STP  (R29, R30), 0(RSP)
	STP  (R19, R20), 16(RSP)
	MOVD R21, 32(RSP)
	MOVD RSP, R29
	MOVD R0, R19
	MOVD R1, R20
	MOVD R2, R21

again:
	MOVD R19, R0
	CALL (R20)
	CBNZW R0, out
	SUBS $1, R21
	BNE  again

out:
	MOVD 32(RSP), R21
	LDP  16(RSP), (R19, R20)
	LDP  0(RSP), (R29, R30)
	ADD  $48, RSP
	RET

// func stubs() (sent, received, many uintptr)
TEXT ·stubs(SB), NOSPLIT, $0-24
	MOVD $·sent(SB), R0
	MOVD R0, sent+0(FP)
	MOVD $·received(SB), R0
	MOVD R0, received+8(FP)
	MOVD $·many(SB), R0
	MOVD R0, many+16(FP)
	RET
