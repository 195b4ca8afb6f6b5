package blob_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/weft-fabric/weft/run/ckpt/blob"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// s3 starts an object store in this process and gives a place in it. With
// WEFT_TEST_S3=s3://BUCKET/PREFIX it is that of the AWS variables instead, like a
// versitygw on this host.
func s3(t *testing.T) blob.Place {
	t.Helper()
	where := os.Getenv("WEFT_TEST_S3")
	if where == "" {
		backend := s3mem.New()
		if err := backend.CreateBucket("models"); err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(gofakes3.New(backend).Server())
		t.Cleanup(server.Close)
		t.Setenv("AWS_ENDPOINT_URL", server.URL)
		t.Setenv("AWS_ACCESS_KEY_ID", "key")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
		where = "s3://models/gpt"
	}
	p, err := blob.Open(fmt.Sprintf("%s/%s-%d", where, t.Name(), time.Now().UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Both places pass one suite.
func TestPlaces(t *testing.T) {
	places := []struct {
		name string
		make func(t *testing.T) blob.Place
	}{
		{"dir", func(t *testing.T) blob.Place { return blob.NewDir(filepath.Join(t.TempDir(), "x", "y")) }},
		{"s3", s3},
	}
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			for _, c := range []struct {
				name string
				test func(*testing.T, blob.Place)
			}{{"put", testPut}, {"list", testList}, {"remove", testRemove}, {"large", testLarge}, {"cancel", testCancel}} {
				t.Run(c.name, func(t *testing.T) { c.test(t, p.make(t)) })
			}
		})
	}
}

func put(t *testing.T, p blob.Place, name, text string) {
	t.Helper()
	if err := p.Put(t.Context(), name, blob.Bytes([]byte(text))); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, p blob.Place, name string, off int64, n int) string {
	t.Helper()
	b := make([]byte, n)
	if err := p.Read(t.Context(), name, b, off); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func testPut(t *testing.T, p blob.Place) {
	put(t, p, "a/one", "hello world")
	if got := get(t, p, "a/one", 6, 5); got != "world" {
		t.Errorf("read %q", got)
	}
	put(t, p, "a/one", "again")
	if got := get(t, p, "a/one", 0, 5); got != "again" {
		t.Errorf("after the second Put: %q", got)
	}
	err := p.Put(t.Context(), "a/headed", blob.Body{Head: 3, Data: [][]byte{[]byte("da"), nil, []byte("ta")},
		Header: func() ([]byte, error) { return []byte("top"), nil }})
	if err != nil {
		t.Fatal(err)
	}
	if got := get(t, p, "a/headed", 0, 7); got != "topdata" {
		t.Errorf("read %q", got)
	}
	for _, h := range []func() ([]byte, error){
		func() ([]byte, error) { return []byte("long"), nil },
		func() ([]byte, error) { return nil, errors.New("no header today") },
	} {
		if p.Put(t.Context(), "a/bad", blob.Body{Head: 3, Header: h, Data: [][]byte{[]byte("data")}}) == nil {
			t.Error("a header that cannot be is accepted")
		}
	}
	for _, c := range []struct {
		name string
		off  int64
		n    int
		want error
	}{{"a/none", 0, 1, fs.ErrNotExist}, {"a/bad", 0, 1, fs.ErrNotExist}, {"a/one", 3, 3, io.ErrUnexpectedEOF},
		{"a/one", 9, 1, io.ErrUnexpectedEOF}} {
		err := p.Read(t.Context(), c.name, make([]byte, c.n), c.off)
		if !errors.Is(err, c.want) {
			t.Errorf("read %d bytes of %s at %d: %v, want %v", c.n, c.name, c.off, err, c.want)
		} else if !strings.Contains(err.Error(), p.Path(c.name)) {
			t.Errorf("%v does not name %s", err, p.Path(c.name))
		}
	}
}

func names(t *testing.T, p blob.Place, prefix string) string {
	t.Helper()
	list, err := p.List(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, i := range list {
		all = append(all, fmt.Sprintf("%s:%d", i.Name, i.Size))
	}
	return strings.Join(all, " ")
}

func testList(t *testing.T, p blob.Place) {
	if got := names(t, p, ""); got != "" {
		t.Errorf("an empty place holds %s", got)
	}
	for _, n := range []string{"b/2", "b/10", "bb/1", "top", "a/1"} {
		put(t, p, n, n)
	}
	for prefix, want := range map[string]string{
		"":     "a/1:3 b/10:4 b/2:3 bb/1:4 top:3",
		"b/":   "b/10:4 b/2:3",
		"b":    "b/10:4 b/2:3 bb/1:4",
		"b/1":  "b/10:4",
		"c/":   "",
		"top":  "top:3",
		"b/10": "b/10:4",
	} {
		if got := names(t, p, prefix); got != want {
			t.Errorf("list %q: %s, want %s", prefix, got, want)
		}
	}
	if err := p.Sync(t.Context(), "b"); err != nil {
		t.Error(err)
	}
}

func testRemove(t *testing.T, p blob.Place) {
	for _, n := range []string{"a/1", "a/2", "ab/1"} {
		put(t, p, n, n)
	}
	for range 2 {
		if err := p.Remove(t.Context(), "a/1"); err != nil {
			t.Error(err)
		}
	}
	if got, want := names(t, p, ""), "a/2:3 ab/1:4"; got != want {
		t.Errorf("left: %s, want %s", got, want)
	}
	for range 2 {
		if err := p.RemoveAll(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	}
	if got, want := names(t, p, ""), "ab/1:4"; got != want {
		t.Errorf("left: %s, want %s", got, want)
	}
	if u, err := p.Unfinished(t.Context()); err != nil || len(u) > 0 {
		t.Errorf("unfinished: %v, %v", u, err)
	}
}

// A blob of several writes and several parts of an upload.
func testLarge(t *testing.T, p blob.Place) {
	data := make([]byte, 70<<20+12345)
	for i := range data {
		data[i] = byte(i * 2654435761 >> 13)
	}
	head := bytes.Repeat([]byte("h"), 4096)
	cut := [][]byte{data[:100], data[100 : 9<<20], data[9<<20 : 9<<20+1], data[9<<20+1:]}
	if err := p.Put(t.Context(), "big", blob.Body{Head: 4096, Header: func() ([]byte, error) { return head, nil }, Data: cut}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4096+len(data))
	if err := p.Read(t.Context(), "big", got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[:4096], head) || !bytes.Equal(got[4096:], data) {
		all := append(bytes.Clone(head), data...)
		i := 0
		for got[i] == all[i] {
			i++
		}
		t.Errorf("the blob is not what was put, from byte %d on", i)
	}
}

func testCancel(t *testing.T, p blob.Place) {
	put(t, p, "a/1", "old")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Put(ctx, "a/1", blob.Bytes([]byte("new"))); !errors.Is(err, context.Canceled) {
		t.Errorf("put after cancel: %v", err)
	}
	if err := p.Read(ctx, "a/1", make([]byte, 3), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("read after cancel: %v", err)
	}
	if _, err := p.List(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("list after cancel: %v", err)
	}
	if got := get(t, p, "a/1", 0, 3); got != "old" {
		t.Errorf("the old blob became %q", got)
	}
	if u, err := p.Unfinished(t.Context()); err != nil || len(u) > 0 {
		t.Errorf("unfinished: %v, %v", u, err)
	}
}

func TestUnfinishedFilesAreFound(t *testing.T) {
	dir := t.TempDir()
	p := blob.NewDir(dir)
	put(t, p, "a/1", "x")
	for _, n := range []string{"a/.2.0123456789abcdef.tmp", "b/.1.0123456789abcdef.tmp", "b/.1.0123456789abcde0.tmp"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, n)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, n), []byte("torn"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "c"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := names(t, p, ""); got != "a/1:1" {
		t.Errorf("list: %s", got)
	}
	if u, err := p.Unfinished(t.Context()); err != nil || !slices.Equal(u, []string{"a/2", "b/1", "c/"}) {
		t.Errorf("unfinished: %v, %v", u, err)
	}
	if err := p.RemoveAll(t.Context(), "b"); err != nil {
		t.Error(err)
	}
	for _, n := range []string{"a/2", "b/1", "c/"} {
		if err := p.Abandon(t.Context(), n); err != nil {
			t.Error(err)
		}
	}
	if got := names(t, p, ""); got != "a/1:1" {
		t.Errorf("left: %s", got)
	}
	if u, err := p.Unfinished(t.Context()); err != nil || len(u) > 0 {
		t.Errorf("unfinished: %v, %v", u, err)
	}
}

func TestPiecesAreTheConcatenation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 9)).Draw(t, "data")
		size := rapid.IntRange(1, 12).Draw(t, "size")
		want := bytes.Join(data, nil)
		var got []byte
		err := blob.Pieces(data, size, func(off int64, piece []byte) error {
			if off != int64(len(got)) || len(piece) == 0 || len(piece) > size {
				t.Fatalf("a piece of %d bytes at %d, after %d bytes", len(piece), off, len(got))
			}
			if off%int64(size) != 0 {
				t.Fatalf("a piece at %d, no multiple of %d", off, size)
			}
			got = append(got, piece...)
			return nil
		})
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v: %v, want %v", err, got, want)
		}
	})
}

func TestS3Errors(t *testing.T) {
	p := s3(t)
	put(t, p, "x", "y")
	none, err := blob.Open("s3://nowhere/x")
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	if err := none.Put(t.Context(), "a", blob.Bytes([]byte("b"))); err == nil || !strings.Contains(err.Error(), `no bucket "nowhere"`) {
		t.Errorf("put to a bucket that is not there: %v", err)
	}
	if _, err := none.List(t.Context(), ""); err == nil || !strings.Contains(err.Error(), `no bucket "nowhere"`) {
		t.Errorf("list of a bucket that is not there: %v", err)
	}
	t.Setenv("AWS_ENDPOINT_URL", "127.0.0.1:9")
	if _, err := blob.Open("s3://models/x"); err == nil || !strings.Contains(err.Error(), "want http://HOST:PORT") {
		t.Errorf("an endpoint without a scheme: %v", err)
	}
}

// An upload that was begun and never completed is no object; it is found and ended.
func TestUnfinishedUploadsAreFound(t *testing.T) {
	p := s3(t)
	u, err := url.Parse(os.Getenv("AWS_ENDPOINT_URL"))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	core, err := minio.NewCore(u.Host, &minio.Options{Creds: credentials.NewEnvAWS(), Region: "us-east-1", Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(p.Path("a/1"), "s3://"), "/")
	put(t, p, "a/2", "whole")
	for _, end := range []func() error{
		func() error { return p.Abandon(t.Context(), "a/1") },
		func() error { return p.RemoveAll(t.Context(), "a") },
	} {
		id, err := core.NewMultipartUpload(t.Context(), bucket, key, minio.PutObjectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := core.PutObjectPart(t.Context(), bucket, key, id, 1, strings.NewReader("torn"), 4,
			minio.PutObjectPartOptions{DisableContentSha256: true}); err != nil {
			t.Fatal(err)
		}
		if got := names(t, p, ""); got != "a/2:5" {
			t.Errorf("list: %s", got)
		}
		if u, err := p.Unfinished(t.Context()); err != nil || !slices.Equal(u, []string{"a/1"}) {
			t.Errorf("unfinished: %v, %v", u, err)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
		if u, err := p.Unfinished(t.Context()); err != nil || len(u) > 0 {
			t.Errorf("unfinished after the end: %v, %v", u, err)
		}
	}
	if got := names(t, p, ""); got != "" {
		t.Errorf("left: %s", got)
	}
}
