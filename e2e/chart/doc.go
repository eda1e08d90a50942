// Package chart tests the chart and the plain manifests with the real helm and
// kubectl, as far as no cluster is needed for that.
package chart
