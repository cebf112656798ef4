{{/*
Matches what Prometheus scraped of this release's routers: the operator gives each series its target's namespace and
Service.
*/}}
{{- define "baton.monitoring.selector" -}}
namespace="{{ .Release.Namespace }}",service="{{ include "baton.routerName" . }}"
{{- end }}

{{/*
A bucket's bound as the routers' page spells it: 1 is "1.0" there.
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
Fails where the cluster has no such kind; a list of the kind and the key that asks for it, with the root before them.
*/}}
{{- define "baton.monitoring.check" -}}
{{- $root := index . 0 -}}
{{- $kind := index . 1 -}}
{{- if and $root.Values.ray.checkOperator (not ($root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" $kind))) -}}
{{- fail (printf "%s: this cluster has no monitoring.coreos.com/v1 %s; install the Prometheus operator, or leave it off and have Prometheus read /metrics of the Service %s" (index . 2) $kind (include "baton.routerName" $root)) -}}
{{- end -}}
{{- end }}
