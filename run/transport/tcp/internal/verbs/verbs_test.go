package verbs

import (
	"bytes"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/record"
)

// late is a connection whose answer to a read comes at the moment when the operation fails.
type late struct {
	net.Conn
	asked   chan struct{} // closed when the request was written
	resumed atomic.Bool
	once    sync.Once
	answer  *bytes.Reader
	body    func() // called before the body is given out
}

func (c *late) Write(b []byte) (int, error) {
	if c.resumed.Swap(true) { // what comes after resume
		c.once.Do(func() { close(c.asked) })
	}
	return len(b), nil
}

func (c *late) Read(b []byte) (int, error) {
	<-c.asked
	if c.answer.Len() <= int(c.answer.Size())-record.Size {
		c.body()
	}
	return c.answer.Read(b[:min(len(b), record.Size)])
}

func (c *late) Close() error { return nil }

// one is an endpoint with one connection, which does not come back.
type one struct {
	conn net.Conn
	wg   sync.WaitGroup
}

func (o *one) Dial(int) (*record.Conn, error) { return record.New(o.conn, nil, true, record.Size), nil }
func (o *one) Alive(int) error                { return nil }
func (o *one) Resumes() bool                  { return false }
func (o *one) Closed() bool                   { return false }
func (o *one) Go(f func())                    { o.wg.Go(f) }

// A read that fails while its bytes come in is told as failed once no more of them lands.
func TestReadFailsWhileItLands(t *testing.T) {
	data := []byte{2 * record.Size: 1}[1:]
	var head [record.Size]byte
	h := record.Header{Kind: kindAnswer, Flags: statusDone, Length: uint32(len(data)), Sum: auth.PlainKey().Piece(data)}
	h.Put(&head, auth.PlainKey())
	answer := append(head[:], data...)
	c := &late{asked: make(chan struct{}), answer: bytes.NewReader(answer)}
	n := &one{conn: c}
	v := New(0, 2, n, nil)
	why := errors.New("the peer is gone")
	var failing sync.WaitGroup
	c.body = func() {
		v.mu.Lock()
		x := v.to[1]
		v.mu.Unlock()
		failing.Go(func() { x.fail(why) })
		for !x.failed() {
			runtime.Gosched()
		}
		if got := v.Poll(nil); len(got) > 0 {
			t.Errorf("%v was told while bytes land", got)
		}
	}
	dst := make([]byte, len(data))
	if _, err := v.Read(1, dst, 8); err != nil {
		t.Fatal(err)
	}
	var got []transport.Completion
	for end := time.Now().Add(20 * time.Second); len(got) == 0 && time.Now().Before(end); runtime.Gosched() {
		got = v.Poll(nil)
	}
	if len(got) != 1 || !errors.Is(got[0].Err, why) {
		t.Errorf("%v, want the failure once", got)
	}
	failing.Wait()
	n.wg.Wait()
}

// meeting is the other end of a connection: a target.
type meeting struct {
	one
	target *Verbs
	dials  int
}

func (m *meeting) Dial(int) (*record.Conn, error) {
	m.dials++
	ours, theirs := net.Pipe()
	m.target.Serve(record.New(theirs, nil, false, 64<<10), 0)
	return record.New(ours, nil, true, 64<<10), nil
}

// Memory is read while its owner writes to it: peers look at words until they change. What comes is what was sent, and no altered record.
func TestReadsOfMemoryThatChanges(t *testing.T) {
	served := &one{}
	target := New(1, 2, served, nil)
	n := &meeting{target: target}
	v := New(0, 2, n, nil)
	for _, size := range []int{8, 4 << 10, 3 * portion} {
		mem, err := target.Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		key, err := target.Key(mem)
		if err != nil {
			t.Fatal(err)
		}
		var owner sync.WaitGroup
		over := make(chan struct{})
		owner.Go(func() {
			for i := uint64(0); ; i++ {
				select {
				case <-over:
					return
				default:
				}
				at := int(i*4099) % size &^ 7
				(*atomic.Uint64)(unsafe.Pointer(&mem[at])).Store(i)
			}
		})
		dst := make([]byte, size)
		for range 300 {
			if _, err := v.Read(1, dst, key); err != nil {
				t.Fatal(err)
			}
			var got []transport.Completion
			for len(got) == 0 {
				got = v.Poll(nil)
				runtime.Gosched()
			}
			if got[0].Err != nil {
				t.Errorf("%d bytes: %v", size, got[0].Err)
				break
			}
		}
		close(over)
		owner.Wait()
	}
	if n.dials != 1 {
		t.Errorf("%d connections for reads that all went well", n.dials)
	}
	v.Stop()
	target.Stop()
	n.wg.Wait()
	served.wg.Wait()
	target.Release()
}
