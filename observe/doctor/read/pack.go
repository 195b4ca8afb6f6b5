package read

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
	"github.com/weft-fabric/weft/observe/doctor"
)

// Logs are kept packed: gzip, zstd and bzip2, one in another; and many in a tar or zip.

// unpack gives what is in a compressed stream, or the stream itself. It is nil when nothing
// can be read.
func (s *scan) unpack(br *bufio.Reader) *bufio.Reader {
	for range 3 {
		magic, _ := br.Peek(4)
		var z io.Reader
		var err error
		switch {
		case bytes.HasPrefix(magic, []byte("\x1f\x8b")):
			z, err = gzip.NewReader(br)
		case bytes.HasPrefix(magic, []byte("\x28\xb5\x2f\xfd")):
			z, err = zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		case bytes.HasPrefix(magic, []byte("BZh")):
			z = bzip2.NewReader(br)
		default:
			return wide(br)
		}
		if err != nil {
			s.note(doctor.Unread, "compressed data: %v", err)
			return nil
		}
		br = bufio.NewReaderSize(cutReader{z, s}, headSize)
	}
	return br
}

// wide gives text in UTF-16, as PowerShell and some consoles write it, as UTF-8. It begins with its byte order, or every other
// byte of its beginning is zero.
func wide(br *bufio.Reader) *bufio.Reader {
	head, _ := br.Peek(64)
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(head, []byte{0xff, 0xfe}):
		order = binary.LittleEndian
	case bytes.HasPrefix(head, []byte{0xfe, 0xff}):
		order = binary.BigEndian
	default:
		var zero [2]int
		for i, b := range head {
			if b == 0 {
				zero[i%2]++
			}
		}
		half := len(head) / 2
		switch {
		case half < 16 || zero[0]+zero[1] != half:
			return br
		case zero[1] == half:
			order = binary.LittleEndian
		case zero[0] == half:
			order = binary.BigEndian
		default:
			return br
		}
	}
	return bufio.NewReaderSize(&utf16Reader{r: br, order: order}, headSize)
}

// utf16Reader turns UTF-16 into UTF-8 without its byte order mark.
type utf16Reader struct {
	r     io.Reader
	order binary.ByteOrder
	high  rune // the first half of a pair
	out   []byte
}

// Read decodes UTF-16, as Windows tools write it, to UTF-8.
func (u *utf16Reader) Read(p []byte) (int, error) {
	var unit [2]byte
	for len(u.out) < len(p) {
		if _, err := io.ReadFull(u.r, unit[:]); err != nil {
			if len(u.out) > 0 {
				break
			}
			return 0, io.EOF
		}
		r := rune(u.order.Uint16(unit[:]))
		switch {
		case r == 0xfeff:
			continue
		case u.high == 0 && utf16.IsSurrogate(r):
			u.high = r
			continue
		case u.high != 0:
			r, u.high = utf16.DecodeRune(u.high, r), 0
		}
		u.out = utf8.AppendRune(u.out, r)
	}
	n := copy(p, u.out)
	u.out = u.out[n:]
	return n, nil
}

// cutReader ends a compressed stream that is cut instead of failing.
type cutReader struct {
	r io.Reader
	s *scan
}

func (c cutReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil && err != io.EOF {
		c.s.note(doctor.Cut, "the compressed data end in the middle (%v)", err)
		err = io.EOF
	}
	return n, err
}

// archive recognises a tar or a zip. What it gives calls a function for every file in it.
func archive(br *bufio.Reader) (each func(func(name string, r io.Reader)) error, ok bool) {
	head, _ := br.Peek(512)
	switch {
	case len(head) == 512 && string(head[257:262]) == "ustar":
		return func(f func(string, io.Reader)) error { return tarFiles(br, f) }, true
	case bytes.HasPrefix(head, []byte("# Archive created by ttar")):
		return func(f func(string, io.Reader)) error { return textArchive(br, f) }, true
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return func(f func(string, io.Reader)) error { return zipFiles(br, f) }, true
	}
	return nil, false
}

func tarFiles(r io.Reader, f func(name string, r io.Reader)) error {
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeReg {
			f(h.Name, t)
		}
	}
}

// zipFiles reads the whole archive first, since its table of contents is at the end.
func zipFiles(r io.Reader, f func(name string, r io.Reader)) error {
	b, err := io.ReadAll(io.LimitReader(r, maxWhole))
	if err != nil {
		return err
	}
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return err
	}
	for _, e := range z.File {
		if e.FileInfo().IsDir() {
			continue
		}
		r, err := e.Open()
		if err != nil {
			return err
		}
		f(e.Name, r)
		r.Close()
	}
	return nil
}

// textArchive reads ttar's form, in which trees of /sys are kept as text:
//
//	Path: sys/class/infiniband/mlx5_0/ports/1/state
//	Lines: 1
//	4: ACTIVE
//	Mode: 644
func textArchive(br *bufio.Reader, f func(string, io.Reader)) error {
	l := newLines(br)
	name := ""
	for {
		b, ok := l.next()
		if !ok {
			return nil
		}
		text := string(b)
		if v, is := strings.CutPrefix(text, "Path: "); is {
			name = v
		} else if v, is := strings.CutPrefix(text, "Lines: "); is && name != "" {
			n, err := strconv.Atoi(v)
			if err != nil {
				return fmt.Errorf("line %d: Lines: %q is not a number", l.n, v)
			}
			var body bytes.Buffer
			for range n {
				b, ok := l.next()
				if !ok {
					return io.ErrUnexpectedEOF
				}
				body.Write(bytes.TrimSuffix(bytes.ReplaceAll(b, []byte("NULLBYTE"), []byte{0}), []byte("EOF")))
				body.WriteByte('\n')
			}
			f(name, &body)
			name = ""
		}
	}
}

// maxMembers is how many files of an archive are read.
const maxMembers = 200_000

// archive reads the members of an archive as files of their own. Archives nest at most twice, and have at most
// maxMembers members: a hostile one must not take all memory.
func (s *scan) archive(each func(func(string, io.Reader)) error, host string) error {
	if strings.Count(s.file, "!") >= 2 {
		s.note(doctor.Unread, "an archive in an archive in an archive: not read")
		return nil
	}
	n := 0
	err := each(func(name string, r io.Reader) {
		if n++; n > maxMembers {
			return
		}
		if err := File(s.c, s.file+"!"+path.Clean("/"+name), host, r); err != nil {
			s.note(doctor.Partial, "%s: %v", name, err)
		}
	})
	if n > maxMembers {
		s.note(doctor.Partial, "%d files; only the first %d were read", n, maxMembers)
	}
	if err != nil { // what is before was read
		kind := doctor.Cut
		if n == 0 {
			kind = doctor.Unread
		}
		s.note(kind, "the archive ends in the middle (%v) after %d files", err, n)
	}
	return nil
}
