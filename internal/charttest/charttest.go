// Package charttest reads Kubernetes manifests as strictly as an API server
// with field validation does, for the tests of manifests and chart.
package charttest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Object is any Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Decode reads all objects of a manifest. A field that its kind does not have,
// one that is given twice, and a kind that we have no use for are errors.
func Decode(manifest []byte) ([]Object, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, batchv1.AddToScheme, rbacv1.AddToScheme,
		coordinationv1.AddToScheme, networkingv1.AddToScheme,
		appsv1.AddToScheme, policyv1.AddToScheme, addMonitoring,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	var all []Object
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if empty(document) {
			continue
		}
		decoded, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, document)
		}
		object, ok := decoded.(Object)
		if !ok {
			return nil, fmt.Errorf("%T is no object", decoded)
		}
		all = append(all, object)
	}
}

// empty tells whether a document is comments alone.
func empty(document []byte) bool {
	for line := range bytes.Lines(document) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

// Find returns the one object of type T that has the name.
func Find[T Object](all []Object, name string) (T, error) {
	var found []T
	for _, object := range all {
		if o, ok := object.(T); ok && o.GetName() == name {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		var none T
		return none, fmt.Errorf("want one %s named %s, got %d", reflect.TypeFor[T]().Elem().Name(), name, len(found))
	}
	return found[0], nil
}

// Pods returns what pods the objects make, by the name of their object.
func Pods(all []Object) map[string]corev1.PodTemplateSpec {
	found := map[string]corev1.PodTemplateSpec{}
	for _, object := range all {
		switch o := object.(type) {
		case *batchv1.CronJob:
			found[o.Name] = o.Spec.JobTemplate.Spec.Template
		case *batchv1.Job:
			found[o.Name] = o.Spec.Template
		case *appsv1.Deployment:
			found[o.Name] = o.Spec.Template
		case *corev1.Pod:
			found[o.Name] = corev1.PodTemplateSpec{ObjectMeta: o.ObjectMeta, Spec: o.Spec}
		}
	}
	return found
}

// Unrestricted says in what a pod falls short of the restricted Pod Security
// level, and of a read-only root and limits besides.
func Unrestricted(pod corev1.PodSpec) []string {
	var short []string
	want := func(ok bool, what string) {
		if !ok {
			short = append(short, what)
		}
	}
	is := func(b *bool, want bool) bool { return b != nil && *b == want }
	want(!pod.HostNetwork && !pod.HostPID && !pod.HostIPC, "no namespace of the host")
	security := pod.SecurityContext
	if security == nil {
		security = &corev1.PodSecurityContext{}
	}
	want(is(security.RunAsNonRoot, true), "runAsNonRoot")
	want(security.SeccompProfile != nil && security.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault, "seccompProfile RuntimeDefault")
	for _, v := range pod.Volumes {
		want(v.HostPath == nil, v.Name+": no hostPath")
	}
	want(len(pod.InitContainers) == 0 && len(pod.Containers) == 1, "one container")
	for _, c := range pod.Containers {
		s := c.SecurityContext
		if s == nil {
			s = &corev1.SecurityContext{}
		}
		want(is(s.AllowPrivilegeEscalation, false), c.Name+": allowPrivilegeEscalation false")
		want(is(s.ReadOnlyRootFilesystem, true), c.Name+": readOnlyRootFilesystem")
		want(s.Privileged == nil, c.Name+": not privileged")
		want(s.Capabilities != nil && len(s.Capabilities.Add) == 0 && reflect.DeepEqual(s.Capabilities.Drop, []corev1.Capability{"ALL"}), c.Name+": drop ALL")
		for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			_, requested := c.Resources.Requests[r]
			_, limited := c.Resources.Limits[r]
			want(requested && limited, fmt.Sprintf("%s: request and limit of %s", c.Name, r))
		}
	}
	return short
}
