// Numbers as text. A missing value is an en dash.

export const NONE = "–";

export function seconds(value: number | null | undefined): string {
  if (value == null) return NONE;
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 100) return `${Number(value.toFixed(value < 10 ? 2 : 1))} s`;
  const rounded = Math.round(value); // first: 119.7 s are 2 min 0 s
  return `${Math.floor(rounded / 60)} min ${rounded % 60} s`;
}

export function count(value: number | null | undefined): string {
  if (value == null) return NONE;
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (Math.abs(value) >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return Math.round(value).toLocaleString("en");
}

export function rate(value: number | null | undefined): string {
  if (value == null) return NONE;
  return value < 10 && value > 0 ? value.toFixed(1) : count(value);
}

export function percent(value: number | null | undefined): string {
  if (value == null) return NONE;
  const hundred = value * 100;
  return `${hundred > 0 && hundred < 10 ? hundred.toFixed(1) : Math.round(hundred)} %`;
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 10 && unit > 0 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

// Numbers in ascending order, with ranges: "0–7, 12".
export function ranges(numbers: number[]): string {
  const parts: [first: number, last: number][] = [];
  for (const each of [...new Set(numbers)].sort((one, other) => one - other)) {
    const part = parts.at(-1);
    if (part && part[1] === each - 1) part[1] = each;
    else parts.push([each, each]);
  }
  return parts.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}

export function clock(time_s: number): string {
  return new Date(time_s * 1000).toLocaleTimeString("en-GB");
}
