/** Ages, sizes and first lines, as people read them. */
import { ICheckpoint } from './tokens';

const STEPS: [Intl.RelativeTimeFormatUnit, number][] = [
  ['day', 86400],
  ['hour', 3600],
  ['minute', 60]
];

function language(): string {
  return document.documentElement.lang || 'en';
}

/** "3 min. ago", in the language of the page. */
export function age(record: ICheckpoint, now: number): string {
  const seconds = Math.max(0, (now - Date.parse(record.created_at)) / 1000);
  const format = new Intl.RelativeTimeFormat(language(), { style: 'narrow', numeric: 'auto' });
  for (const [unit, length] of STEPS) {
    if (seconds >= length) {
      return format.format(-Math.floor(seconds / length), unit);
    }
  }
  return format.format(-Math.floor(seconds / 10) * 10, 'second');
}

export function moment(record: ICheckpoint): string {
  return new Date(record.created_at).toLocaleString(language());
}

/** "1.4 MB"; empty where it is not known. */
export function size(bytes: number | null): string {
  if (bytes === null) {
    return '';
  }
  const units = ['byte', 'kilobyte', 'megabyte', 'gigabyte', 'terabyte'];
  const power = bytes < 1 ? 0 : Math.min(4, Math.floor(Math.log10(bytes) / 3));
  return new Intl.NumberFormat(language(), {
    style: 'unit',
    unit: units[power],
    unitDisplay: power === 0 ? 'narrow' : 'short',
    maximumSignificantDigits: 3
  }).format(bytes / 1000 ** power);
}
