// A small chart over the last minutes: lines with gaps where nothing was measured, or stacked columns.

import { useState } from "preact/hooks";
import { NONE } from "./format";

export interface Line {
  name: string;
  tone: string; // a class of style.css
  values: (number | null)[];
}

interface ChartProps {
  title: string;
  lines: Line[];
  format: (value: number | null | undefined) => string;
  span_s: number;
  target?: number | null;
  stacked?: boolean;
  max?: number;
}

const WIDTH = 300;
const HEIGHT = 72;
const NUM_POINTS = 60;

export function Chart({ title, lines, format, span_s, target, stacked, max }: ChartProps) {
  const [place, setPlace] = useState<number | null>(null);
  const padded = lines.map((line) => ({ ...line, values: pad(line.values) }));
  const sums = Array.from({ length: NUM_POINTS }, (_, at) => padded.reduce((sum, { values }) => sum + (values[at] ?? 0), 0));
  const highest = stacked ? Math.max(...sums) : Math.max(0, ...padded.flatMap(({ values }) => values.map((each) => each ?? 0)));
  const top = max ?? niceTop(Math.max(highest, target && highest > target / 3 ? target : 0));
  const shown = place ?? lastKnown(padded);
  const at = (value: number) => HEIGHT - 2 - (value / top) * (HEIGHT - 6);
  const label = padded.map(({ name, values }) => `${name} ${format(values[shown])}`).join(", ");

  const move = (event: PointerEvent) => {
    const box = (event.currentTarget as SVGElement).getBoundingClientRect();
    const share = (event.clientX - box.left) / Math.max(1, box.width);
    setPlace(Math.min(NUM_POINTS - 1, Math.max(0, Math.floor(share * NUM_POINTS))));
  };
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{title}</span>
        <span class="legend">
          {padded.map(({ name, tone, values }) => (
            <span key={name} class={`legend-item ${tone}`}>
              <span class="swatch" aria-hidden="true" />
              {name} <b class="num">{format(values[shown])}</b>
            </span>
          ))}
        </span>
      </figcaption>
      <div class="plot">
        <span class="axis axis-top num" aria-hidden="true">
          {highest || max ? format(top) : NONE}
        </span>
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`${title}, now: ${label}`}
          onPointerMove={move}
          onPointerLeave={() => setPlace(null)}
        >
          <line class="grid" x1="0" x2={WIDTH} y1={at(top)} y2={at(top)} />
          <line class="grid" x1="0" x2={WIDTH} y1={at(top / 2)} y2={at(top / 2)} />
          <line class="base" x1="0" x2={WIDTH} y1={HEIGHT - 2} y2={HEIGHT - 2} />
          {target != null && target <= top && <line class="target" x1="0" x2={WIDTH} y1={at(target)} y2={at(target)} />}
          {place != null && <line class="cursor" x1={x(place)} x2={x(place)} y1="0" y2={HEIGHT} />}
          {stacked ? columns(padded, at) : padded.map((line) => <path key={line.name} class={`line ${line.tone}`} d={path(line.values, at)} />)}
        </svg>
      </div>
      <div class="axis-row num" aria-hidden="true">
        <span>{place == null ? "5 min ago" : ""}</span>
        {target != null && <span class="target-note">target {format(target)}</span>}
        <span>{place == null ? "now" : `${Math.round((NUM_POINTS - 1 - place) * span_s)} s ago`}</span>
      </div>
    </figure>
  );
}

function pad(values: (number | null)[]): (number | null)[] {
  const missing = Math.max(0, NUM_POINTS - values.length);
  return [...Array<null>(missing).fill(null), ...values.slice(-NUM_POINTS)];
}

function x(place: number): number {
  return ((place + 0.5) / NUM_POINTS) * WIDTH;
}

function path(values: (number | null)[], at: (value: number) => number): string {
  let text = "";
  let pen = false;
  values.forEach((value, place) => {
    if (value == null) {
      pen = false;
      return;
    }
    text += `${pen ? "L" : "M"}${x(place).toFixed(1)} ${at(value).toFixed(1)}`;
    if (!pen) text += "h0.01"; // a lone point is drawn as a dot
    pen = true;
  });
  return text;
}

function columns(lines: Line[], at: (value: number) => number) {
  const width = (WIDTH / NUM_POINTS) * 0.7;
  return Array.from({ length: NUM_POINTS }, (_, place) => {
    let below = 0;
    return lines.map((line) => {
      const value = line.values[place] ?? 0;
      if (!value) return null;
      const top = at(below + value);
      const height = at(below) - top;
      below += value;
      return <rect key={`${place}-${line.name}`} class={`column ${line.tone}`} x={x(place) - width / 2} y={top} width={width} height={height} />;
    });
  });
}

function lastKnown(lines: Line[]): number {
  for (let place = NUM_POINTS - 1; place >= NUM_POINTS - 3; place -= 1) {
    if (lines.some(({ values }) => values[place] != null)) return place;
  }
  return NUM_POINTS - 1;
}

function niceTop(highest: number): number {
  if (highest <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(highest));
  const step = [1, 1.5, 2, 3, 5, 7.5, 10].find((each) => each * power >= highest) ?? 10;
  return step * power;
}
