package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/weft-fabric/weft/model/unit"
)

// S3 is a prefix of a bucket. An object appears when its upload is complete, which
// is what the temporary name and the rename are for in a directory.
type S3 struct {
	client         *minio.Client
	transport      *http.Transport
	bucket, prefix string
}

// partSize is what one request of an upload carries; the protocol allows 10,000
// parts of an object, so larger objects take larger parts.
const (
	partSize = 32 << 20
	maxParts = 10_000
	uploads  = 4 // requests under way for one object
)

// newS3 takes endpoint, region and credentials from the variables that every S3
// client knows, credentials also from the usual file and, with AWS itself, from
// the host's role.
func newS3(bucket, prefix string) (*S3, error) {
	where := "s3://" + bucket + "/" + prefix
	if bucket == "" {
		return nil, fmt.Errorf("%s: no bucket; want s3://BUCKET/PREFIX", where)
	}
	endpoint, region := first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), first("AWS_REGION", "AWS_DEFAULT_REGION")
	known := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
	if endpoint == "" {
		endpoint = "https://s3.amazonaws.com"
		known = append(known, &credentials.IAM{})
	} else {
		if os.Getenv("AWS_ACCESS_KEY_ID") == "" && !credentialsFile() {
			return nil, fmt.Errorf("%s: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", where)
		}
		if region == "" {
			region = "us-east-1" // what other stores expect; AWS itself is asked for the bucket's
		}
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("AWS_ENDPOINT_URL %q: want http://HOST:PORT or https://HOST", endpoint)
	}
	transport, err := minio.DefaultTransport(u.Scheme == "https")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds:  credentials.NewChainCredentials(known),
		Secure: u.Scheme == "https",
		Region: region, Transport: transport,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix += "/"
	}
	return &S3{client, transport, bucket, prefix}, nil
}

func first(names ...string) string {
	for _, n := range names {
		if v := os.Getenv(n); v != "" {
			return v
		}
	}
	return ""
}

func credentialsFile() bool {
	path := os.Getenv("AWS_SHARED_CREDENTIALS_FILE")
	if path == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return false
		}
		path = filepath.Join(home, ".aws", "credentials")
	}
	_, err := os.Stat(path)
	return err == nil
}

// Path is the object's URL.
func (s *S3) Path(name string) string { return "s3://" + s.bucket + "/" + s.prefix + name }

// explain names the object, keeps what callers branch on, and says the fix where
// the store's own words do not.
func (s *S3) explain(what, name string, err error) error {
	if err == nil {
		return nil
	}
	r := minio.ToErrorResponse(err)
	switch r.Code {
	case minio.NoSuchKey:
		return &fs.PathError{Op: what, Path: s.Path(name), Err: fs.ErrNotExist}
	case minio.NoSuchBucket:
		return fmt.Errorf("%s %s: no bucket %q at %s; create it first", what, s.Path(name), s.bucket, s.client.EndpointURL())
	case minio.AccessDenied, minio.InvalidAccessKeyID, minio.SignatureDoesNotMatch:
		return fmt.Errorf("%s %s: refused by %s; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION: %w",
			what, s.Path(name), s.client.EndpointURL(), err)
	case minio.InvalidRange:
		return fmt.Errorf("%s %s: %w", what, s.Path(name), io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("%s %s at %s: %w", what, s.Path(name), s.client.EndpointURL(), err)
}

// Put uploads an object, in parts if it is large. Requests are signed without a
// SHA-256 of what they carry, which over plain HTTP would cost more than all else
// here; what a checkpoint carries is under checksums of its own.
func (s *S3) Put(ctx context.Context, name string, b Body) error {
	return s.explain("upload", name, s.put(ctx, name, b, minio.PutObjectOptions{}))
}

func (s *S3) put(ctx context.Context, name string, b Body, o minio.PutObjectOptions) error {
	head, err := b.header()
	if err != nil {
		return fmt.Errorf("upload %s (%v): %w", s.Path(name), unit.Bytes(b.Size()), err)
	}
	r := newReaderAt(append([][]byte{head}, b.Data...))
	part := max(partSize, (r.size()/maxParts+1<<20)&^(1<<20-1))
	o.ContentType, o.PartSize, o.NumThreads, o.DisableContentSha256 = "application/octet-stream", uint64(part), uploads, true
	_, err = s.client.PutObject(ctx, s.bucket, s.prefix+name, io.NewSectionReader(r, 0, r.size()), r.size(), o)
	return err
}

// Create is Put for an object that must not be there yet: fs.ErrExist if it is, whoever wrote it, and however
// close two writers are.
func (s *S3) Create(ctx context.Context, name string, b Body) error {
	o := minio.PutObjectOptions{}
	o.SetMatchETagExcept("*")
	put := s.put
	if b.Size() > partSize {
		put = s.createInParts
	}
	err := put(ctx, name, b, o)
	if c := minio.ToErrorResponse(err).Code; c == minio.PreconditionFailed || c == "ConditionalRequestConflict" {
		return &fs.PathError{Op: "create", Path: s.Path(name), Err: fs.ErrExist}
	}
	return s.explain("upload", name, err)
}

// createInParts uploads parts and completes them under a condition. The client's own upload in parts leaves the condition out
// when it completes them, and the object would be overwritten.
func (s *S3) createInParts(ctx context.Context, name string, b Body, o minio.PutObjectOptions) (err error) {
	head, err := b.header()
	if err != nil {
		return fmt.Errorf("upload %s (%v): %w", s.Path(name), unit.Bytes(b.Size()), err)
	}
	r := newReaderAt(append([][]byte{head}, b.Data...))
	size := max(partSize, (r.size()/maxParts+1<<20)&^(1<<20-1))
	core, key := minio.Core{Client: s.client}, s.prefix+name
	upload, err := core.NewMultipartUpload(ctx, s.bucket, key, minio.PutObjectOptions{ContentType: "application/octet-stream"})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // stores keep and charge for what is never completed
			_ = core.AbortMultipartUpload(context.WithoutCancel(ctx), s.bucket, key, upload)
		}
	}()
	parts := make([]minio.CompletePart, (r.size()+size-1)/size)
	errs := make([]error, len(parts))
	turn := make(chan struct{}, uploads)
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			n := min(size, r.size()-int64(i)*size)
			var p minio.ObjectPart
			p, errs[i] = core.PutObjectPart(ctx, s.bucket, key, upload, i+1, io.NewSectionReader(r, int64(i)*size, n), n,
				minio.PutObjectPartOptions{DisableContentSha256: true})
			parts[i] = minio.CompletePart{PartNumber: i + 1, ETag: p.ETag}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err = core.CompleteMultipartUpload(ctx, s.bucket, key, upload, parts, o)
	return err
}

// Read asks for a range of an object.
func (s *S3) Read(ctx context.Context, name string, p []byte, off int64) error {
	if len(p) == 0 {
		_, err := s.client.StatObject(ctx, s.bucket, s.prefix+name, minio.StatObjectOptions{})
		return s.explain("read", name, err)
	}
	_, err := s.ReadVersion(ctx, name, p, off, "")
	return err
}

// rangeOf asks for n bytes of an object, and for nothing if it has another tag; any will do if version is empty.
func rangeOf(off int64, n int, version string) (o minio.GetObjectOptions, err error) {
	if err := o.SetRange(off, off+int64(n)-1); err != nil || version == "" {
		return o, err
	}
	return o, o.SetMatchETag(version)
}

// ReadVersion asks for a range of an object that has this tag.
func (s *S3) ReadVersion(ctx context.Context, name string, p []byte, off int64, version string) (string, error) {
	o, err := rangeOf(off, len(p), version)
	if err != nil {
		return "", err
	}
	core := minio.Core{Client: s.client}
	body, info, _, err := core.GetObject(ctx, s.bucket, s.prefix+name, o)
	if version != "" && minio.ToErrorResponse(err).Code == minio.PreconditionFailed {
		return "", fmt.Errorf("read %s: %w", s.Path(name), ErrChanged)
	}
	if err != nil {
		return "", s.explain("read", name, err)
	}
	defer body.Close()
	if version != "" && info.ETag != version { // the store does not know the condition
		return "", fmt.Errorf("read %s: %w", s.Path(name), ErrChanged)
	}
	n, err := io.ReadFull(body, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "", fmt.Errorf("read %s: %d bytes from %d on, %d are there: %w", s.Path(name), len(p), off, n, io.ErrUnexpectedEOF)
	}
	return info.ETag, s.explain("read", name, err)
}

// List asks for all objects under the prefix.
func (s *S3) List(ctx context.Context, prefix string) ([]Info, error) {
	var list []Info
	for o := range s.client.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true}) {
		if o.Err != nil {
			return nil, s.explain("list", prefix, o.Err)
		}
		if name := strings.TrimPrefix(o.Key, s.prefix); name != "" && !strings.HasSuffix(name, "/") {
			list = append(list, Info{name, o.Size})
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Remove deletes an object.
func (s *S3) Remove(ctx context.Context, name string) error {
	err := s.client.RemoveObject(ctx, s.bucket, s.prefix+name, minio.RemoveObjectOptions{})
	return s.explain("remove", name, err)
}

// RemoveAll deletes what is under a folder, and ends uploads that were never
// completed, which stores keep and charge for otherwise.
func (s *S3) RemoveAll(ctx context.Context, folder string) error {
	list, err := s.List(ctx, folder+"/")
	if err != nil {
		return err
	}
	for _, i := range list {
		if err := s.Remove(ctx, i.Name); err != nil {
			return err
		}
	}
	pending, err := s.pending(ctx, folder+"/")
	if err != nil {
		return err
	}
	for _, key := range pending {
		if err := s.Abandon(ctx, strings.TrimPrefix(key, s.prefix)); err != nil {
			return err
		}
	}
	return nil
}

// Abandon ends uploads of an object that were not completed.
func (s *S3) Abandon(ctx context.Context, name string) error {
	err := s.client.RemoveIncompleteUpload(ctx, s.bucket, s.prefix+name)
	return s.explain("end the upload of", name, err)
}

// pending gives the keys of uploads that were not completed.
func (s *S3) pending(ctx context.Context, prefix string) ([]string, error) {
	var keys []string
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the lister ends if it is not read to the end
	for u := range s.client.ListIncompleteUploads(ctx, s.bucket, s.prefix+prefix, true) {
		if minio.ToErrorResponse(u.Err).Code == minio.NoSuchUpload {
			break // what some stores say instead of an empty list
		}
		if u.Err != nil {
			return nil, s.explain("list uploads of", prefix, u.Err)
		}
		keys = append(keys, u.Key)
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// Unfinished asks for uploads that were not completed.
func (s *S3) Unfinished(ctx context.Context) ([]string, error) {
	keys, err := s.pending(ctx, "")
	for i := range keys {
		keys[i] = strings.TrimPrefix(keys[i], s.prefix)
	}
	return keys, err
}

// Sync has nothing to do: an object that is listed is durable.
func (s *S3) Sync(context.Context, string) error { return nil }

// Close closes idle connections.
func (s *S3) Close() { s.transport.CloseIdleConnections() }
