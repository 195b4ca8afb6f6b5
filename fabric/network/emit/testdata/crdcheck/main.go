// Crdcheck judges Kubernetes objects as an API server does: by the schemas of custom resource
// definitions, with unknown fields refused and CEL rules evaluated, but without a server. It is a module
// of its own, so that weft does not depend on Kubernetes.
//
//	crdcheck CRD-FOLDER < objects.yaml
//
// It prints one line per object: its kind, and "valid", "no definition" or what is wrong.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kyaml "k8s.io/apimachinery/pkg/util/yaml"
	limits "k8s.io/apiserver/pkg/apis/cel"
)

// judge is what one version of a kind is judged by.
type judge struct {
	shape  *schema.Structural
	schema validation.SchemaValidator
	rules  *cel.Validator
}

func main() {
	if err := run(os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "crdcheck:", err)
		os.Exit(2)
	}
}

func run(dir string, in io.Reader, out io.Writer) error {
	kinds := map[string]judge{}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no definitions in %s: %v", dir, err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if err := define(kinds, data); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	d := kyaml.NewYAMLOrJSONDecoder(in, 4096)
	for {
		var o map[string]any
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if o["kind"] != nil {
			name := fmt.Sprintf("%v/%v", o["apiVersion"], o["kind"])
			fmt.Fprintf(out, "%s: %s\n", name, verdict(kinds, name, o))
		}
	}
}

// define adds the kinds of a file.
func define(kinds map[string]judge, data []byte) error {
	d := kyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		var c v1.CustomResourceDefinition
		if err := d.Decode(&c); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		for _, v := range c.Spec.Versions {
			var props apiextensions.JSONSchemaProps
			if err := v1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, &props, nil); err != nil {
				return err
			}
			shape, err := schema.NewStructural(&props)
			if err != nil {
				return err
			}
			by, _, err := validation.NewSchemaValidator(&props)
			if err != nil {
				return err
			}
			kinds[c.Spec.Group+"/"+v.Name+"/"+c.Spec.Names.Kind] = judge{shape, by, cel.NewValidator(shape, true, limits.PerCallLimit)}
		}
	}
}

func verdict(kinds map[string]judge, name string, o map[string]any) string {
	k, known := kinds[name]
	if !known {
		return "no definition"
	}
	if unknown := pruning.PruneWithOptions(o, k.shape, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}); len(unknown) > 0 {
		return fmt.Sprintf("unknown fields %v", unknown)
	}
	defaulting.Default(o, k.shape)
	if errs := validation.ValidateCustomResource(nil, o, k.schema); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	if errs, _ := k.rules.Validate(context.Background(), field.NewPath(""), k.shape, o, nil, limits.RuntimeCELCostBudget); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	return "valid"
}
