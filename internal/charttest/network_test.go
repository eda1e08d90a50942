package charttest_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/duesday/duesday/internal/charttest"
)

const policies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: shut}
spec:
  podSelector: {matchLabels: {app: a}}
  policyTypes: [Ingress, Egress]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: some}
spec:
  podSelector: {matchExpressions: [{key: app, operator: In, values: [a]}]}
  policyTypes: [Egress]
  egress:
    - ports: [{protocol: TCP, port: 53}, {protocol: TCP, port: 8000, endPort: 8002}]
    - to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {podSelector: {matchLabels: {app: b}}}]
      ports: [{protocol: TCP, port: 443}]
    - to: [{namespaceSelector: {matchLabels: {name: dns}}, podSelector: {matchLabels: {app: b}}}]
`

func TestNetwork(t *testing.T) {
	all, err := charttest.Decode([]byte(policies))
	require.NoError(t, err)
	n := charttest.NewNetwork(all)
	a, b := map[string]string{"app": "a"}, map[string]string{"app": "b"}
	dns, shop := map[string]string{"name": "dns"}, map[string]string{"name": "shop"}
	for _, c := range []struct {
		name     string
		from     map[string]string
		to       charttest.Peer
		protocol corev1.Protocol
		port     int
		want     bool
	}{
		{"no policy selects it", b, charttest.Peer{IP: "192.0.2.1"}, corev1.ProtocolTCP, 25, true},
		{"one of its policies has nothing, the other not this port", a, charttest.Peer{IP: "192.0.2.1"}, corev1.ProtocolTCP, 25, false},
		{"a port anywhere", a, charttest.Peer{IP: "192.0.2.1"}, corev1.ProtocolTCP, 53, true},
		{"another protocol", a, charttest.Peer{IP: "192.0.2.1"}, corev1.ProtocolUDP, 53, false},
		{"a range's end", a, charttest.Peer{Pod: b, Namespace: shop}, corev1.ProtocolTCP, 8002, true},
		{"past a range", a, charttest.Peer{Pod: b, Namespace: shop}, corev1.ProtocolTCP, 8003, false},
		{"an address inside", a, charttest.Peer{IP: "10.2.0.1"}, corev1.ProtocolTCP, 443, true},
		{"an address excepted", a, charttest.Peer{IP: "10.1.0.1"}, corev1.ProtocolTCP, 443, false},
		{"an address outside", a, charttest.Peer{IP: "192.0.2.1"}, corev1.ProtocolTCP, 443, false},
		{"a pod here", a, charttest.Peer{Pod: b}, corev1.ProtocolTCP, 443, true},
		{"another pod here", a, charttest.Peer{Pod: a}, corev1.ProtocolTCP, 443, false},
		{"its namesake elsewhere", a, charttest.Peer{Pod: b, Namespace: shop}, corev1.ProtocolTCP, 443, false},
		{"all ports of a pod in a namespace", a, charttest.Peer{Pod: b, Namespace: dns}, corev1.ProtocolUDP, 9, true},
		{"another pod in it", a, charttest.Peer{Pod: a, Namespace: dns}, corev1.ProtocolUDP, 9, false},
	} {
		ok, err := n.Egress(c.from, c.to, c.protocol, c.port)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, ok, c.name)
	}
	in, err := n.Ingress(a, charttest.Peer{Pod: b}, corev1.ProtocolTCP, 53)
	require.NoError(t, err)
	require.False(t, in)
	in, err = n.Ingress(b, charttest.Peer{Pod: a}, corev1.ProtocolTCP, 53)
	require.NoError(t, err)
	require.True(t, in)
}
