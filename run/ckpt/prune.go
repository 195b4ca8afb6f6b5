package ckpt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// prune removes what Options does not keep once a checkpoint is complete: older
// checkpoints, emergency ones and unfinished folders of steps before it. A manifest
// goes first, so that what is left of a half removed checkpoint is none.
func (s *Store) prune(ctx context.Context, newest *Manifest) error {
	if newest.Emergency {
		return nil
	}
	list, err := s.remembered(ctx)
	if err != nil {
		return err
	}
	kept := 0
	for _, e := range slices.Backward(list) {
		keep := true
		switch {
		case e.Step > newest.Step || e.Folder == newest.folder:
		case e.State == Incomplete:
			// A rank writes its steps in order, so nobody writes here any more.
			keep = e.Step >= newest.Step
		case e.Emergency:
			keep = false
		case s.o.Every > 0 && e.Step%s.o.Every == 0:
		default:
			keep = s.o.Keep == 0 || kept < s.o.Keep
		}
		if !keep {
			if err := s.drop(ctx, e.Folder); err != nil {
				return err
			}
		} else if e.State == Complete && !e.Emergency && e.Step <= newest.Step {
			kept++
		}
	}
	return nil
}

// remembered is List without reading manifests that were read before and whose
// folders have kept their sizes: enough to know what may go.
func (s *Store) remembered(ctx context.Context) ([]Entry, error) {
	sh, err := s.shelf(ctx)
	if err != nil {
		return nil, err
	}
	s.pruning.Lock()
	defer s.pruning.Unlock()
	var list []Entry
	now := map[string]Entry{}
	for _, name := range sh.names {
		bytes := int64(0)
		for _, f := range sh.folders[name] {
			bytes += f.Size
		}
		e, ok := s.seen[name]
		if !ok || e.Bytes != bytes {
			if e, err = s.entry(ctx, name, sh.folders[name]); err != nil {
				return nil, err
			}
			e.manifest = nil
		}
		if e.State == Complete {
			now[name] = e
		}
		list = append(list, e)
	}
	s.seen = now
	slices.SortStableFunc(list, compareEntries)
	return list, nil
}

func (s *Store) drop(ctx context.Context, folder string) error {
	if !isFolder(folder) {
		return fmt.Errorf("%q is not a checkpoint folder; not removed", folder)
	}
	if err := s.place.Remove(ctx, folder+"/"+manifestName); err != nil {
		return err
	}
	return s.place.RemoveAll(ctx, folder)
}

// Clean removes what writers that died left: folders without a manifest, and
// unfinished files in others. Call it from one rank while none saves, as when
// training starts.
func (s *Store) Clean(ctx context.Context) error {
	list, err := s.List(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range list {
		if e.State == Incomplete {
			errs = append(errs, s.drop(ctx, e.Folder))
		}
	}
	unfinished, err := s.place.Unfinished(ctx)
	errs = append(errs, err)
	for _, name := range unfinished {
		if folder, _, _ := strings.Cut(name, "/"); isFolder(folder) {
			errs = append(errs, s.place.Abandon(ctx, name))
		}
	}
	return errors.Join(errs...)
}
