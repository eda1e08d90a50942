package charttest

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

const component = "app.kubernetes.io/component"

// Unproxied says in what the objects fall short of what the spend-cap proxy is
// for: the pods of component proxy alone hold Stripe's key and reach Stripe,
// and nobody reaches them but the pods that charge.
func Unproxied(all []Object, stripeSecret string) ([]string, error) {
	c := proxyCheck{network: NewNetwork(all), stripeSecret: stripeSecret}
	pods := Pods(all)
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		if pods[name].Labels[component] == "proxy" {
			c.proxy = pods[name].Labels
		}
	}
	if c.proxy == nil {
		return []string{"no proxy"}, nil
	}
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		c.pod(name, pods[name])
	}
	stranger := map[string]string{"app": "stranger"}
	for who, peer := range map[string]Peer{
		"a stranger":                 {Pod: stranger},
		"a namesake elsewhere":       {Pod: labelled(c.proxy, "run"), Namespace: stranger},
		"an address":                 {IP: "10.9.9.9"},
		"a pod of another component": {Pod: labelled(c.proxy, "plan")},
	} {
		for _, port := range []int{8080, 8081} {
			c.want(false, c.ingress(c.proxy, peer, port), "%s: connects to the proxy's %d", who, port)
		}
	}
	return c.short, c.err
}

type proxyCheck struct {
	network      Network
	proxy        map[string]string
	stripeSecret string
	short        []string
	err          error
}

func (c *proxyCheck) pod(name string, pod corev1.PodTemplateSpec) {
	isProxy := pod.Labels[component] == "proxy"
	charges := pod.Labels[component] == "run" || pod.Labels[component] == "reconcile"
	var keys, tokens bool
	for _, container := range pod.Spec.Containers {
		for _, e := range container.Env {
			keys = keys || e.Name == "STRIPE_API_KEY" || e.Name == "STRIPE_API_KEY_FILE"
			tokens = tokens || e.Name == "DUESDAY_ADMIN_TOKEN_FILE"
		}
	}
	c.want(isProxy, keys, "%s: has a variable for Stripe's key", name)
	c.want(isProxy, slices.Contains(secretsOf(pod.Spec), c.stripeSecret), "%s: gets the secret %s", name, c.stripeSecret)
	c.want(isProxy || charges, tokens, "%s: has the admin token", name)

	stripe, postgres := Peer{IP: "203.0.113.7"}, Peer{IP: "10.1.2.3"}
	c.want(isProxy, c.egress(pod.Labels, stripe, 443), "%s: reaches Stripe", name)
	c.want(true, c.egress(pod.Labels, postgres, 5432), "%s: reaches Postgres", name)
	c.want(false, c.egress(pod.Labels, stripe, 80), "%s: reaches port 80", name)
	for _, port := range []int{8080, 8081} {
		c.want(charges, c.egress(pod.Labels, Peer{Pod: c.proxy}, port), "%s: may go to the proxy's %d", name, port)
		c.want(charges, c.ingress(c.proxy, Peer{Pod: pod.Labels}, port), "%s: is let into the proxy's %d", name, port)
		c.want(false, c.egress(pod.Labels, Peer{IP: "10.1.2.3"}, port), "%s: reaches port %d anywhere", name, port)
	}
	if !isProxy {
		c.want(false, c.ingress(pod.Labels, Peer{Pod: pod.Labels}, 8080), "%s: can be reached", name)
	}
}

func (c *proxyCheck) want(want, got bool, what string, args ...any) {
	if got != want {
		c.short = append(c.short, fmt.Sprintf(what, args...)+fmt.Sprintf(": want %t", want))
	}
}

func (c *proxyCheck) egress(pod map[string]string, to Peer, port int) bool {
	ok, err := c.network.Egress(pod, to, corev1.ProtocolTCP, port)
	c.err = firstOf(c.err, err)
	return ok
}

func (c *proxyCheck) ingress(pod map[string]string, from Peer, port int) bool {
	ok, err := c.network.Ingress(pod, from, corev1.ProtocolTCP, port)
	c.err = firstOf(c.err, err)
	return ok
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// labelled is the labels of the release's pod of another component.
func labelled(pod map[string]string, as string) map[string]string {
	pod = maps.Clone(pod)
	pod[component] = as
	return pod
}

// secretsOf returns the names of the secrets that a pod reads.
func secretsOf(pod corev1.PodSpec) []string {
	var names []string
	for _, v := range pod.Volumes {
		if v.Secret != nil {
			names = append(names, v.Secret.SecretName)
		}
	}
	for _, c := range pod.Containers {
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				names = append(names, e.ValueFrom.SecretKeyRef.Name)
			}
		}
		for _, e := range c.EnvFrom {
			if e.SecretRef != nil {
				names = append(names, e.SecretRef.Name)
			}
		}
	}
	return names
}
