package xfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
)

// storageFailure is storage that failed, and whose it is.
type storageFailure struct {
	agent, region string
	kind          error
	why           error
}

func (f *storageFailure) Error() string {
	return fmt.Sprintf("region %q of %s: %v: %v", f.region, f.agent, f.kind, f.why)
}

func (f *storageFailure) Unwrap() []error { return []error{f.kind, f.why} }

// storageError names the region and the kind of an error of its storage.
func storageError(r *Region, err error) error {
	var f *storageFailure
	if err == nil || errors.As(err, &f) || errors.Is(err, context.Canceled) {
		return err
	}
	kind := ErrStorage
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		kind = ErrFull
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		kind = ErrShort
	case errors.Is(err, ErrExists):
		kind = ErrExists
	}
	if r == nil {
		return fmt.Errorf("%w: %w", kind, err)
	}
	return &storageFailure{r.agent.id.Name, r.name, kind, err}
}
