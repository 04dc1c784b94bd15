import { LabIcon } from '@jupyterlab/ui-components';

/** A clock whose hand goes back. */
export const timeTravelIcon = new LabIcon({
  name: 'timetravel:clock',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">' +
    '<path class="jp-icon3" fill="#616161" d="M13 3a9 9 0 0 0-9 9H1l4 4 4-4H6a7 7 0 1 1 2.05 4.95' +
    'l-1.42 1.42A9 9 0 1 0 13 3zm-1 5v5l4.28 2.54.72-1.21-3.5-2.08V8z"/></svg>'
});

/** An arrow up to a bar: to before this cell. */
export const beforeIcon = new LabIcon({
  name: 'timetravel:before',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">' +
    '<path class="jp-icon3" fill="#616161" d="M4 3h16v2H4zM12.5 8a8 8 0 0 0-5.3 2L4.5 7.3V14h6.7' +
    'l-2.6-2.6a6 6 0 0 1 9.6 3.1l1.9-.6A8 8 0 0 0 12.5 8zM4 19h16v2H4z"/></svg>'
});
