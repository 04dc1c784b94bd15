/** Ages, sizes and first lines, as people read them. */
import { ICheckpoint } from './tokens';

const STEPS: [Intl.RelativeTimeFormatUnit, number][] = [
  ['day', 86400],
  ['hour', 3600],
  ['minute', 60]
];

/** Made once for a language: to make a format takes longer than all else that a row needs. */
function forLanguage<T>(make: (language: string) => T): () => T {
  let made: { language: string; format: T } | null = null;
  return () => {
    const language = document.documentElement.lang || 'en';
    if (made?.language !== language) {
      made = { language, format: make(language) };
    }
    return made.format;
  };
}

const ages = forLanguage(
  language => new Intl.RelativeTimeFormat(language, { style: 'narrow', numeric: 'auto' })
);

const moments = forLanguage(
  language =>
    new Intl.DateTimeFormat(language, {
      ...{ year: 'numeric', month: 'numeric', day: 'numeric' },
      ...{ hour: 'numeric', minute: 'numeric', second: 'numeric' }
    })
);

const sizes = forLanguage(language =>
  ['byte', 'kilobyte', 'megabyte', 'gigabyte', 'terabyte'].map(
    unit =>
      new Intl.NumberFormat(language, {
        style: 'unit',
        unit,
        unitDisplay: unit === 'byte' ? 'narrow' : 'short',
        maximumSignificantDigits: 3
      })
  )
);

/** "3 min. ago", in the language of the page. */
export function age(record: ICheckpoint, now: number): string {
  const seconds = Math.max(0, (now - Date.parse(record.created_at)) / 1000);
  const format = ages();
  for (const [unit, length] of STEPS) {
    if (seconds >= length) {
      return format.format(-Math.floor(seconds / length), unit);
    }
  }
  return format.format(-Math.floor(seconds / 10) * 10, 'second');
}

export function moment(record: ICheckpoint): string {
  return moments().format(new Date(record.created_at));
}

/** "1.4 MB"; empty where it is not known. */
export function size(bytes: number | null): string {
  if (bytes === null) {
    return '';
  }
  const power = bytes < 1 ? 0 : Math.min(4, Math.floor(Math.log10(bytes) / 3));
  return sizes()[power].format(bytes / 1000 ** power);
}
