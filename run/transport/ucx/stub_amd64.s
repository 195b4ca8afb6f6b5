//go:build linux && !static

#include "textflag.h"

// What UCX calls follows C's convention (arguments in DI, SI, DX, CX, R8, R9) and enters no Go.

// func sent()
// void sent(void *request, ucs_status_t status, void *slot): stores the status, and frees the request.
TEXT ·sent(SB), NOSPLIT|NOFRAME, $0-0
	MOVL SI, 0(DX)
	MOVQ 8(DX), AX
	JMP  AX

// func received()
// void received(void *request, ucs_status_t status, size_t length, void *slot)
TEXT ·received(SB), NOSPLIT|NOFRAME, $0-0
	MOVL SI, 0(CX)
	MOVQ 8(CX), AX
	JMP  AX

// func many()
// unsigned many(ucp_worker_h worker, unsigned (*progress)(ucp_worker_h), size_t times): until something moved.
TEXT ·many(SB), NOSPLIT|NOFRAME, $0-0
	PUSHQ BX
	PUSHQ R12
	PUSHQ R13
	MOVQ  DI, BX
	MOVQ  SI, R12
	MOVQ  DX, R13

again:
	MOVQ  BX, DI
	CALL  R12
	TESTL AX, AX
	JNZ   out
	SUBQ  $1, R13
	JNZ   again

out:
	POPQ R13
	POPQ R12
	POPQ BX
	RET

// func stubs() (sent, received, many uintptr)
TEXT ·stubs(SB), NOSPLIT, $0-24
	LEAQ ·sent(SB), AX
	MOVQ AX, sent+0(FP)
	LEAQ ·received(SB), AX
	MOVQ AX, received+8(FP)
	LEAQ ·many(SB), AX
	MOVQ AX, many+16(FP)
	RET
