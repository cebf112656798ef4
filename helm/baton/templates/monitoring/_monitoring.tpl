{{/*
Selects the series that Prometheus scraped from this release's routers: the operator labels each series with its target's
namespace and Service.
*/}}
{{- define "baton.monitoring.selector" -}}
namespace="{{ .Release.Namespace }}",service="{{ include "baton.routerName" . }}"
{{- end }}

{{/*
Names the release in an alert.
*/}}
{{- define "baton.monitoring.of" -}}
{{ printf " of %s in %s" .Release.Name .Release.Namespace }}
{{- end }}

{{/*
The URL of an alert's section in the documentation. Takes a list of the root and the alert.
*/}}
{{- define "baton.monitoring.runbook" -}}
{{- $root := index . 0 -}}
{{ printf "%s#%s" $root.Values.monitoring.rules.runbookURL (lower (index . 1)) }}
{{- end }}

{{/*
A bucket's bound as formatted in the routers' metrics: 1 is "1.0" there.
*/}}
{{- define "baton.monitoring.le" -}}
{{- $bound := float64 . -}}
{{- if eq (floor $bound) $bound }}{{ printf "%.1f" $bound }}{{ else }}{{ $bound }}{{ end -}}
{{- end }}

{{/*
Share of a histogram's values above the objective's bound, over a window. Takes a dict of selector, metric, seconds and
window.
*/}}
{{- define "baton.monitoring.slowShare" -}}
(1 - sum(rate(baton:{{ .metric }}_bucket{ {{- .selector }},le="{{ include "baton.monitoring.le" .seconds }}"}[{{ .window }}])) / sum(rate(baton:{{ .metric }}_count{ {{- .selector -}} }[{{ .window }}])))
{{- end }}

{{/*
Fails if the cluster does not have a kind. Takes a list of the root, the kind and the key that needs it.
*/}}
{{- define "baton.monitoring.check" -}}
{{- $root := index . 0 -}}
{{- $kind := index . 1 -}}
{{- if and $root.Values.ray.checkOperator (not ($root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" $kind))) -}}
{{- fail (printf "%s: this cluster has no monitoring.coreos.com/v1 %s; install the Prometheus operator, or leave it off and make Prometheus scrape /metrics of the Service %s" (index . 2) $kind (include "baton.routerName" $root)) -}}
{{- end -}}
{{- end }}

{{/*
Fails for an objective that is not a bucket's bound in the routers' histograms: between two buckets Prometheus could only
guess. The bounds are those of router/metrics/metrics.py.
*/}}
{{- define "baton.monitoring.checkSLO" -}}
{{- $ttft := list 0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 160.0 -}}
{{- $tpot := list 0.001 0.0025 0.005 0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 -}}
{{- range $key, $bounds := dict "ttftSeconds" $ttft "tpotSeconds" $tpot -}}
{{- $seconds := index $ $key -}}
{{- if not (has (float64 $seconds) $bounds) -}}
{{- fail (printf "slo.%s: %v is not a bound of the routers' histogram, so monitoring.rules could not watch it; give one of %s, or leave the rules off" $key $seconds (join ", " $bounds)) -}}
{{- end -}}
{{- end -}}
{{- if lt (float64 .quantile) 0.95 -}}
{{- fail (printf "slo.quantile: %v, and below 0.95 no alert could detect a fast loss; give 0.95 to 0.99, or leave monitoring.rules off" .quantile) -}}
{{- end -}}
{{- end }}
