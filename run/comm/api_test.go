package comm

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/transport/mem"
)

var sentinels = []error{ErrDead, ErrLeft, ErrMismatch, ErrTimeout, ErrAborted, ErrClosed, ErrBroken}

// matches checks that a failure is one of the sentinels and of no other, and that it
// names the ranks at fault.
func matches(err, want error, culprits ...int) error {
	var f *Failure
	if !errors.As(err, &f) || !slices.Equal(f.Culprits, culprits) {
		return fmt.Errorf("%w: want a failure that names %v", err, culprits)
	}
	for _, s := range sentinels {
		if errors.Is(err, s) != (s == want) {
			return fmt.Errorf("%w: matches %q: %t", err, s, errors.Is(err, s))
		}
	}
	return nil
}

// Every failure matches the error of its kind and no other.
func TestSentinels(t *testing.T) {
	bg := context.Background()
	kill := func(c *Comm) { c.world.ep.(*mem.Endpoint).Kill() }
	sum := func(c *Comm) error { return AllReduce(bg, c, []int32{1}, Sum) }
	for name, x := range map[string]struct {
		want     error
		culprits []int
		rank0    func(c *Comm) error
		rank1    func(c *Comm)
	}{
		"dead":      {ErrDead, []int{1}, sum, kill},
		"left":      {ErrLeft, []int{1}, sum, func(c *Comm) { _ = c.Close() }},
		"mismatch":  {ErrMismatch, []int{0, 1}, sum, func(c *Comm) { _ = Broadcast(bg, c, []int32{1}, 0) }},
		"aborted":   {ErrAborted, []int{1}, sum, func(c *Comm) { c.Abort(errors.New("enough")) }},
		"cancelled": {ErrAborted, []int{0}, func(c *Comm) error { ctx, cancel := context.WithCancel(bg); cancel(); return Barrier(ctx, c) }, nil},
		"closed":    {ErrClosed, nil, func(c *Comm) error { return errors.Join(c.Close(), Barrier(bg, c)) }, nil},
		"timeout": {ErrTimeout, []int{1}, func(c *Comm) error {
			ctx, cancel := context.WithTimeout(bg, time.Second) // the call begins before it is over
			defer cancel()
			err := Recv(ctx, c, []int32{0}, 1)
			if !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("no deadline: %w", err)
			}
			return err
		}, nil},
		"put to the dead": {ErrDead, []int{1}, func(c *Comm) error {
			for c.world.ep.Alive(1) == nil {
				runtime.Gosched()
			}
			return Put(c, 1<<40, []int32{1}, 1).Wait(bg)
		}, kill},
		"put to one that left": {ErrLeft, []int{1}, func(c *Comm) error {
			for c.world.ep.Alive(1) == nil {
				runtime.Gosched()
			}
			return Put(c, 1<<40, []int32{1}, 1).Wait(bg)
		}, func(c *Comm) { _ = c.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, 2, quick, func(c *Comm) error {
				if c.Rank() == 0 {
					return matches(x.rank0(c), x.want, x.culprits...)
				}
				if x.rank1 != nil {
					x.rank1(c)
				}
				return nil
			})
		})
	}
}

// A one-sided operation that is wrong says so every time it is asked, and harms
// nothing else.
func TestWrongOneSidedCall(t *testing.T) {
	bg := context.Background()
	each(t, 2, quick, func(c *Comm) error {
		bad := Get(c, []uint64{0}, 12345, 1-c.Rank())
		first, second := bad.Wait(bg), bad.Wait(bg)
		for _, s := range sentinels {
			if errors.Is(first, s) {
				return fmt.Errorf("%w is taken for %q", first, s)
			}
		}
		return errors.Join(says(first, "get from rank "), says(second, "get from rank "),
			says(Notify(c, 1, 2).Wait(bg), "rank 2 is not in a communicator of 2"), Barrier(bg, c))
	})
}

// What users of the package see names no type of the packages below it, but where
// it is made one of its own (types.go). Words of units are for everybody.
func TestSignaturesNameOwnTypes(t *testing.T) {
	files := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	look := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if x, ok := n.(*ast.SelectorExpr); ok {
				if p, ok := x.X.(*ast.Ident); ok &&
					slices.Contains([]string{"transport", "sched", "reduce", "choice", "tune", "cost", "wait", "meet"}, p.Name) {
					t.Errorf("%s: %s.%s in what users see", files.Position(x.Pos()), p.Name, x.Sel.Name)
				}
			}
			return true
		})
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() {
					look(d.Type)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					spec, ok := s.(*ast.TypeSpec)
					if !ok || !spec.Name.IsExported() || spec.Assign.IsValid() {
						continue
					}
					fields, ok := spec.Type.(*ast.StructType)
					if !ok {
						look(spec.Type)
						continue
					}
					for _, x := range fields.Fields.List {
						if slices.ContainsFunc(x.Names, (*ast.Ident).IsExported) {
							look(x.Type)
						}
					}
				}
			}
		}
	}
}
