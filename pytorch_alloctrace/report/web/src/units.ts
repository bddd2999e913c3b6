// Formatting of numbers, as in report/units.py.

// Created once: toLocaleString creates a formatter per call, which doubles the time of formatting.
const DECIMAL = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** Formats bytes in binary units with three digits: "0 B", "1.25 KiB", "52.5 MiB". */
export function size(count: number): string {
  const sign = count < 0 ? "-" : "";
  let value = Math.abs(count);
  let unit = 0;
  // 1023.7 would be rounded to 1024: use the next unit.
  while (unit < BINARY.length - 1 && value >= (unit ? 1023.5 : 1024)) {
    value /= 1024;
    unit++;
  }
  const digitsText = unit === 0 ? String(Math.round(value)) : value >= 99.95 ? number(Math.round(value)) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
  return `${sign}${digitsText} ${BINARY[unit]}`;
}

export function change(count: number): string {
  return count > 0 ? `+${size(count)}` : size(count);
}

export function number(count: number): string {
  return DECIMAL.format(Math.round(count));
}

export function exact(count: number): string {
  return `${number(count)} ${Math.abs(count) === 1 ? "byte" : "bytes"}`;
}

export function counted(count: number, noun: string): string {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

export function share(part: number, total: number): string {
  if (total <= 0) return "-";
  const percent = (100 * part) / total;
  return percent > 0 && percent < 0.5 ? "<1 %" : `${percent.toFixed(0)} %`;
}

/** Formats three significant digits, without an exponent. */
function digits(value: number): string {
  return String(Number(value.toPrecision(3)));
}

/** Formats a duration: "0.42 ms", "12.3 s", "4 min 5 s", "2 h 3 min". */
export function duration(seconds: number): string {
  if (seconds <= 0) return "0 s";
  if (seconds < 0.9995) return seconds >= 1e-3 ? `${digits(seconds * 1e3)} ms` : `${digits(seconds * 1e6)} us`;
  if (seconds < 59.95) return `${digits(seconds)} s`;
  const rounded = Math.round(seconds);
  const parts: [number, string][] =
    rounded < 3600 ? [[Math.floor(rounded / 60), "min"], [rounded % 60, "s"]]
    : rounded < 86400 ? [[Math.floor(rounded / 3600), "h"], [Math.floor((rounded % 3600) / 60), "min"]]
    : [[Math.floor(rounded / 86400), "d"], [Math.floor((rounded % 86400) / 3600), "h"]];
  return parts.filter(([value], index) => index === 0 || value > 0).map(([value, unit]) => `${number(value)} ${unit}`).join(" ");
}

/** Formats a time since the recording began, with enough digits to resolve a thousandth of `range` seconds. */
export function instant(seconds: number, range: number, isShort = seconds < 1 && range < 1): string {
  const [value, unit, rangeInUnit] = isShort ? [seconds * 1e3, "ms", range * 1e3] : [seconds, "s", range];
  const decimals = Math.max(0, Math.min(6, Math.ceil(-Math.log10(Math.max(rangeInUnit, 1e-9))) + 3));
  return `${value.toFixed(decimals)} ${unit}`;
}

export function hexadecimal(address: number): string {
  return `0x${address.toString(16)}`;
}
