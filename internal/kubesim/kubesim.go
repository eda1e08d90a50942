// Package kubesim is as much of a Kubernetes API server as a leader election
// meets: Leases with optimistic concurrency, Jobs to read, the rights that
// Duesday's Role gives, and faults on demand. Only tests use it.
//
// It listens in memory, so that a test may run it, client-go and the election
// under the simulated clock of testing/synctest, or on loopback.
package kubesim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Forever is a wait that ends when the client has gone away.
const Forever time.Duration = -1

// A Fault is what befalls one request.
type Fault struct {
	// Status refuses the request, unless it is zero.
	Status int
	// Before is waited before the request takes effect, which it does even if
	// the client has gone meanwhile; after Forever it does not.
	Before time.Duration
	// After is waited before the answer is sent.
	After time.Duration
}

var (
	leases = schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}
	jobs   = schema.GroupResource{Group: batchv1.GroupName, Resource: "jobs"}
)

// Server is an API server with one namespace for each that its objects name.
type Server struct {
	pipes  *pipes // nil: it listens on loopback
	url    string
	closed chan struct{}

	mu      sync.Mutex
	version int
	leases  map[string]*coordinationv1.Lease
	jobs    map[string]*batchv1.Job
	events  []corev1.Event
	faults  func(*http.Request) Fault
	denied  []string
}

// Start returns a server that listens on loopback until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s, end, err := Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return s
}

// Listen returns a server that listens on loopback, and what ends it.
func Listen() (*Server, func(), error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	s := newServer("http://" + listener.Addr().String())
	return s, s.serve(listener), nil
}

// InMemory returns a server that only Config's clients can reach, and what ends
// it: a synctest bubble must end it itself.
func InMemory() (*Server, func()) {
	s := newServer("http://kubernetes.default.svc")
	s.pipes = listen()
	return s, s.serve(s.pipes)
}

func newServer(url string) *Server {
	return &Server{
		url: url, closed: make(chan struct{}),
		leases: map[string]*coordinationv1.Lease{}, jobs: map[string]*batchv1.Job{},
	}
}

func (s *Server) serve(listener net.Listener) (end func()) {
	var requests sync.WaitGroup
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.enter(&requests) {
			defer requests.Done()
			s.answer(w, r)
		}
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // ends with ErrServerClosed
	}()
	return func() {
		s.mu.Lock()
		close(s.closed)
		s.mu.Unlock()
		_ = server.Close()
		<-served
		requests.Wait()
	}
}

// enter adds a request, unless the server has been closed.
func (s *Server) enter(requests *sync.WaitGroup) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return false
	default:
		requests.Add(1)
		return true
	}
}

// URL is where the server listens.
func (s *Server) URL() string { return s.url }

// Config returns a client's configuration. The client's name is its user agent,
// by which faults can tell clients apart.
func (s *Server) Config(client string) *rest.Config {
	config := &rest.Config{Host: s.url, UserAgent: client}
	if s.pipes != nil {
		config.Transport = &http.Transport{DialContext: s.pipes.dial}
	}
	return config
}

// Faults lets f decide what befalls each request from now on; nil: nothing.
func (s *Server) Faults(f func(*http.Request) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

// PutLease stores the Lease as it is, as kubectl would.
func (s *Server) PutLease(namespace, name string, spec coordinationv1.LeaseSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.leases[path.Join(namespace, name)] = &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: strconv.Itoa(s.version)},
		Spec:       spec,
	}
}

// DeleteLease removes the Lease.
func (s *Server) DeleteLease(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, path.Join(namespace, name))
}

// Lease returns a copy of the stored Lease, nil if there is none.
func (s *Server) Lease(namespace, name string) *coordinationv1.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[path.Join(namespace, name)].DeepCopy()
}

// PutJob stores a Job with the annotations.
func (s *Server) PutJob(namespace, name string, annotations map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs[path.Join(namespace, name)] = &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations, UID: types.UID("uid-of-" + name)},
	}
}

// PutIndexes stores a Job with so many completions.
func (s *Server) PutIndexes(namespace, name string, completions int32) {
	s.PutJob(namespace, name, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs[path.Join(namespace, name)].Spec.Completions = &completions
}

// Events returns those that were recorded, in their order.
func (s *Server) Events() []corev1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]corev1.Event(nil), s.events...)
}

// Denied returns every request so far that the Role does not allow.
func (s *Server) Denied() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.denied...)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	// To its end, or the server does not notice that the client has gone.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	faults := s.faults
	s.mu.Unlock()
	var fault Fault
	if faults != nil {
		fault = faults(r)
	}
	if !s.wait(r.Context(), fault.Before) {
		return
	}
	var object any
	if fault.Status != 0 {
		err = apierrors.NewGenericServerResponse(fault.Status, r.Method, leases, path.Base(r.URL.Path), "a fault", 0, true)
	} else {
		object, err = s.execute(r, body)
	}
	if !s.wait(r.Context(), fault.After) {
		return
	}
	code := http.StatusOK
	if err != nil {
		status := err.(apierrors.APIStatus).Status()
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		code, object = int(status.Code), status
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object) // the client may have gone
}

// wait reports whether the time passed.
func (s *Server) wait(ctx context.Context, d time.Duration) bool {
	switch {
	case d == 0:
		return true
	case d == Forever:
		select {
		case <-ctx.Done():
		case <-s.closed:
		}
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.closed:
		return false
	}
}

func (s *Server) execute(r *http.Request, body []byte) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// /apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE/NAME
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if r.Method == http.MethodPost && len(parts) == 5 && strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/") && parts[4] == "events" {
		return s.record(parts[3], body)
	}
	if len(parts) != 7 || parts[0] != "apis" || parts[3] != "namespaces" {
		return nil, s.deny(r, schema.GroupResource{}, "")
	}
	group, version, namespace, resource, name := parts[1], parts[2], parts[4], parts[5], parts[6]
	key := path.Join(namespace, name)
	switch r.Method + " " + group + " " + version + " " + resource {
	case "GET coordination.k8s.io v1 leases":
		if lease := s.leases[key]; lease != nil {
			return lease.DeepCopy(), nil
		}
		return nil, apierrors.NewNotFound(leases, name)
	case "PUT coordination.k8s.io v1 leases":
		return s.update(key, name, body)
	case "GET batch v1 jobs":
		if job := s.jobs[key]; job != nil {
			return job.DeepCopy(), nil
		}
		return nil, apierrors.NewNotFound(jobs, name)
	}
	return nil, s.deny(r, schema.GroupResource{Group: group, Resource: resource}, name)
}

func (s *Server) deny(r *http.Request, resource schema.GroupResource, name string) error {
	s.denied = append(s.denied, r.Method+" "+r.URL.Path)
	return apierrors.NewForbidden(resource, name, fmt.Errorf("the Role does not allow it"))
}

// update refuses what the API server refuses: a Lease has no unconditional
// update.
func (s *Server) update(key, name string, body []byte) (any, error) {
	// Protobuf, as client-go prefers, or JSON.
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("want a Lease, got %T", object))
	}
	lease.TypeMeta = metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"}
	stored := s.leases[key]
	switch {
	case stored == nil:
		return nil, apierrors.NewNotFound(leases, name)
	case lease.ResourceVersion == "":
		return nil, apierrors.NewBadRequest("metadata.resourceVersion: must be specified for an update")
	case lease.ResourceVersion != stored.ResourceVersion:
		return nil, apierrors.NewConflict(leases, name, fmt.Errorf("the object has been modified"))
	}
	s.version++
	lease.ResourceVersion = strconv.Itoa(s.version)
	s.leases[key] = lease
	return lease.DeepCopy(), nil
}

// record refuses an Event as the API server does: one that is in another
// namespace than its object, or has no name.
func (s *Server) record(namespace string, body []byte) (any, error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	event, ok := object.(*corev1.Event)
	switch {
	case !ok:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("want an Event, got %T", object))
	case event.Namespace != namespace, event.InvolvedObject.Namespace != namespace:
		return nil, apierrors.NewBadRequest("involvedObject.namespace: does not match event.namespace")
	case event.Name == "" && event.GenerateName == "":
		return nil, apierrors.NewBadRequest("metadata.name: name or generateName is required")
	case len(event.Message) > 1024:
		return nil, apierrors.NewBadRequest("message: can have at most 1024 bytes")
	}
	s.version++
	event.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
	event.Name, event.ResourceVersion = event.GenerateName+strconv.Itoa(s.version), strconv.Itoa(s.version)
	s.events = append(s.events, *event)
	return event, nil
}
