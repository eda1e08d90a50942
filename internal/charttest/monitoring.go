package charttest

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The Prometheus operator's kinds, with the fields that the chart uses: another
// is as unknown here as a misspelt one.
type (
	// PodMonitor says which pods are scraped.
	PodMonitor struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              PodMonitorSpec `json:"spec"`
	}
	// PodMonitorSpec is a PodMonitor's.
	PodMonitorSpec struct {
		Selector            metav1.LabelSelector `json:"selector"`
		PodMetricsEndpoints []PodMetricsEndpoint `json:"podMetricsEndpoints"`
	}
	// PodMetricsEndpoint is a port to scrape.
	PodMetricsEndpoint struct {
		Port        string       `json:"port"`
		Path        string       `json:"path"`
		Interval    string       `json:"interval"`
		Relabelings []Relabeling `json:"relabelings"`
	}
	// Relabeling gives what is scraped a label.
	Relabeling struct {
		Action      string `json:"action"`
		TargetLabel string `json:"targetLabel"`
		Replacement string `json:"replacement"`
	}

	// PrometheusRule is a file of rules.
	PrometheusRule struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              PrometheusRuleSpec `json:"spec"`
	}
	// PrometheusRuleSpec is what a plain Prometheus reads as a file.
	PrometheusRuleSpec struct {
		Groups []RuleGroup `json:"groups"`
	}
	// RuleGroup is a group of it.
	RuleGroup struct {
		Name  string `json:"name"`
		Rules []Rule `json:"rules"`
	}
	// Rule records a series, or raises an alert.
	Rule struct {
		Record      string            `json:"record,omitempty"`
		Alert       string            `json:"alert,omitempty"`
		Expr        string            `json:"expr"`
		For         string            `json:"for,omitempty"`
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
)

func addMonitoring(scheme *runtime.Scheme) error {
	version := schema.GroupVersion{Group: "monitoring.coreos.com", Version: "v1"}
	scheme.AddKnownTypes(version, &PodMonitor{}, &PrometheusRule{})
	return nil
}

// DeepCopyObject is runtime.Object's.
func (m *PodMonitor) DeepCopyObject() runtime.Object {
	out := *m
	m.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	m.Spec.Selector.DeepCopyInto(&out.Spec.Selector)
	out.Spec.PodMetricsEndpoints = append([]PodMetricsEndpoint(nil), m.Spec.PodMetricsEndpoints...)
	for i := range out.Spec.PodMetricsEndpoints {
		e := &out.Spec.PodMetricsEndpoints[i]
		e.Relabelings = append([]Relabeling(nil), e.Relabelings...)
	}
	return &out
}

// DeepCopyObject is runtime.Object's.
func (r *PrometheusRule) DeepCopyObject() runtime.Object {
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Groups = append([]RuleGroup(nil), r.Spec.Groups...)
	for i := range out.Spec.Groups {
		g := &out.Spec.Groups[i]
		g.Rules = append([]Rule(nil), g.Rules...)
		for j := range g.Rules {
			g.Rules[j].Labels = maps.Clone(g.Rules[j].Labels)
			g.Rules[j].Annotations = maps.Clone(g.Rules[j].Annotations)
		}
	}
	return &out
}
