#!/usr/bin/env python3
"""Draws a board from what a Prometheus holds, as one picture much like Grafana's.

  draw.py BOARD.json --prometheus URL --start SECONDS --end SECONDS --output PICTURE.png
          [--job REGEX] [--scrape SECONDS]

Fails where a panel answers nothing; what lies in collapsed rows is left out. For tests, and for the
pictures of docs/monitoring.md.
"""

import argparse
import datetime
import json
import math
import re
import sys
import urllib.parse
import urllib.request

import matplotlib
matplotlib.use('Agg')
# pylint: disable=wrong-import-position
from matplotlib import dates, pyplot, ticker
from matplotlib.patches import Rectangle

WIDTH, CELL = 1650, 30  # pixels: of the picture, of a row of the grid
MARGIN = 6
PAGE, PANEL, GRID, TEXT, FAINT = '#111217', '#181b1f', '#2c3038', '#d8d9da', '#9fa7b3'
LINES = ('#73bf69', '#f2cc0c', '#5794f2', '#ff780a', '#b877d9', '#f2495c', '#8ab8ff', '#fade2a',
         '#96d98d', '#ffb357', '#ca95e5', '#37872d')
COLORS = {'green': '#73bf69', 'orange': '#ff9830', 'red': '#f2495c', 'blue': '#5794f2'}
TIME_STEPS = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
POINTS = 330  # of a line, about as many as Grafana asks for
BINARY = ('', 'Ki', 'Mi', 'Gi', 'Ti')
DECIMAL = ('', ' k', ' M', ' G', ' T')


class Source:
    """A Prometheus, and the time that is looked at."""

    def __init__(self, options):
        self.url = options.prometheus
        self.start, self.end = options.start, options.end
        seconds = self.end - self.start
        self.step = max(1, round(seconds / POINTS))
        rate = max(self.step + options.scrape, 4 * options.scrape)
        self.words = {'$__rate_interval': f'{round(rate)}s', '$__range': f'{round(seconds)}s',
                      '$shoal_job': options.job, '$instance': '.+'}

    def series(self, expr):
        """[(labels, [(time, value)])]"""
        for word, text in self.words.items():
            expr = expr.replace(word, text)
        query = urllib.parse.urlencode({'query': expr, 'start': self.start, 'end': self.end,
                                        'step': self.step})
        with urllib.request.urlopen(f'{self.url}/api/v1/query_range?{query}') as reply:
            data = json.load(reply)['data']['result']
        found = []
        for each in data:
            values = [(float(at), float(value)) for at, value in each['values']]
            finite = [(at, value) for at, value in values if value == value]
            if finite:
                found.append((each['metric'], finite))
        return sorted(found, key=lambda each: sorted(each[0].items()))


def scaled(value, factor, names):
    size = 0
    while abs(value) >= factor and size + 1 < len(names):
        value /= factor
        size += 1
    return (f'{value:.0f}' if abs(value) >= 100 else f'{value:.3g}') + names[size]


def duration(value):
    for limit, factor, unit in ((1e-3, 1e6, 'µs'), (1, 1e3, 'ms'), (120, 1, 's'),
                                (7200, 1 / 60, 'min'), (172800, 1 / 3600, 'h')):
        if abs(value) < limit:
            return f'{value * factor:.3g} {unit}' if value else '0 s'
    return f'{value / 86400:.0f} d'


def say(value, unit, decimals=None):
    """A value as people read it."""
    if unit == 's':
        return duration(value)
    if unit == 'percentunit':
        return f'{100 * value:.3g} %'
    if unit in ('bytes', 'Bps'):
        text = scaled(value, 1024, [' ' + name + 'B' for name in BINARY])
        return text + ('/s' if unit == 'Bps' else '')
    if unit == 'sci':
        return f'{value:.2g}'
    if decimals is not None and abs(value) < 10000:
        text = f'{value:.{decimals}f}'
    else:
        text = scaled(value, 1000, DECIMAL)
    return text + ('/s' if unit == 'ops' else '')


def name_of(target, labels):
    return re.sub(r'\{\{(\w+)\}\}', lambda word: labels.get(word.group(1), ''),
                  target['legendFormat']).strip()


class Picture:
    def __init__(self, rows):
        self.height = rows * CELL + 2 * MARGIN + 44
        self.figure = pyplot.figure(figsize=(WIDTH / 100, self.height / 100), facecolor=PAGE)

    def box(self, grid):
        """Left, bottom, width and height in pixels."""
        column = (WIDTH - 2 * MARGIN) / 24
        return (MARGIN + grid['x'] * column + 3,
                self.height - 44 - MARGIN - (grid['y'] + grid['h']) * CELL + 3,
                grid['w'] * column - 6, grid['h'] * CELL - 6)

    def fraction(self, left, bottom, width, height):
        return (left / WIDTH, bottom / self.height, width / WIDTH, height / self.height)

    def text(self, left, bottom, text, **how):
        self.figure.text(left / WIDTH, bottom / self.height, text, **how)

    def frame(self, box):
        x, y, w, h = self.fraction(*box)
        self.figure.add_artist(Rectangle((x, y), w, h, facecolor=PANEL, edgecolor=GRID,
                                         linewidth=0.8, zorder=-1,
                                         transform=self.figure.transFigure))


def level_color(panel, value):
    color = 'green'
    for step in panel['fieldConfig']['defaults'].get('thresholds', {}).get('steps', []):
        if step.get('value') is None or value >= step['value']:
            color = step['color']
    return COLORS[color]


def draw_number(picture, panel, box, found):
    left, bottom, width, height = box
    defaults = panel['fieldConfig']['defaults']
    share = width / len(found)
    for at, (name, values) in enumerate(found):
        value = values[-1][1]
        color = level_color(panel, value)
        axes = picture.figure.add_axes(
            picture.fraction(left + at * share + 4, bottom + 2, share - 8, height * 0.22))
        axes.axis('off')
        times, heights = zip(*values)
        axes.fill_between(times, heights, min(heights), color=color, alpha=0.25, linewidth=0)
        axes.plot(times, heights, color=color, linewidth=0.9)
        picture.text(left + (at + 0.5) * share, bottom + height * 0.56,
                     say(value, defaults['unit'], defaults.get('decimals')), color=color,
                     fontsize=19 if len(found) < 3 else 15, ha='center', va='center')
        if len(found) > 1:
            picture.text(left + (at + 0.5) * share, bottom + height * 0.33, name, color=FAINT,
                         fontsize=8.5, ha='center', va='center')


def draw_bars(picture, panel, box, found):
    left, bottom, width, height = box
    axes = picture.figure.add_axes(
        picture.fraction(left + 80, bottom + 14, width - 160, height - 50))
    axes.set_facecolor(PANEL)
    unit = panel['fieldConfig']['defaults']['unit']
    values = [values[-1][1] for _, values in found]
    axes.barh(range(len(found)), values, height=0.55, color=LINES[2])
    axes.set_yticks(range(len(found)), [name for name, _ in found], color=TEXT, fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.02 * max(values) or 1)
    axes.set_xticks([])
    for at, value in enumerate(values):
        axes.text(1.01, at, say(value, unit), color=TEXT, fontsize=8.5, va='center',
                  transform=axes.get_yaxis_transform())
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


def plot_stack(axes, found, step):
    known = {round(at) for _, values in found for at, _ in values}
    times = range(min(known), max(known) + 1, step)  # nothing where there is nothing
    at_time = [{round(at): value for at, value in values} for _, values in found]
    axes.stackplot([datetime.datetime.fromtimestamp(at) for at in times],
                   [[values.get(at, 0) for at in times] for values in at_time],
                   colors=LINES, alpha=0.75, linewidth=0.4, labels=[name for name, _ in found])


def plot_lines(axes, found, step):
    for at, (name, values) in enumerate(found):
        times, heights = [], []
        for moment, value in values:
            if times and moment - last > 3 * step:  # a gap stays a gap
                times.append(datetime.datetime.fromtimestamp(last + step))
                heights.append(float('nan'))
            times.append(datetime.datetime.fromtimestamp(moment))
            heights.append(value)
            last = moment
        axes.plot(times, heights, color=LINES[at % len(LINES)], linewidth=1.3, label=name)


def mark_times(axes, source, width):
    """Round times, as many as there is room for."""
    seconds = source.end - source.start
    step = next(step for step in TIME_STEPS if seconds / step < (width - 92) / 70)
    first = math.ceil(source.start / step)
    times = [datetime.datetime.fromtimestamp(at * step)
             for at in range(first, int(source.end / step) + 1)]
    axes.xaxis.set_major_locator(ticker.FixedLocator(dates.date2num(times)))
    axes.xaxis.set_major_formatter(dates.DateFormatter('%H:%M:%S' if step < 60 else '%H:%M'))


def mark_values(axes, unit, whole):
    factor = 1
    while unit in ('bytes', 'Bps') and axes.get_ylim()[1] / factor >= 1024:
        factor *= 1024
    low, high = (limit / factor for limit in axes.get_ylim())
    values = ticker.MaxNLocator(5, integer=whole).tick_values(low, high)
    axes.yaxis.set_major_locator(ticker.FixedLocator(
        [value * factor for value in values if low <= value <= high]))


def draw_lines(picture, panel, box, found, source, marks):
    left, bottom, width, height = box
    defaults = panel['fieldConfig']['defaults']
    custom = defaults.get('custom', {})
    axes = picture.figure.add_axes(
        picture.fraction(left + 66, bottom + 46, width - 92, height - 80))
    axes.set_facecolor(PANEL)
    if custom.get('stacking', {}).get('mode') == 'normal':
        plot_stack(axes, found, source.step)
    else:
        plot_lines(axes, found, source.step)
    if custom.get('scaleDistribution', {}).get('type') == 'log':
        axes.set_yscale('log')
    if defaults.get('min') is not None:
        axes.set_ylim(bottom=defaults['min'])
        if max(value for _, values in found for _, value in values) <= defaults['min']:
            axes.set_ylim(top=defaults['min'] + 1)
    if defaults.get('max') is not None:
        axes.set_ylim(top=defaults['max'])
    axes.set_xlim(datetime.datetime.fromtimestamp(source.start),
                  datetime.datetime.fromtimestamp(source.end))
    mark_times(axes, source, width)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(
        lambda value, _: say(value, defaults['unit'])))
    if custom.get('scaleDistribution', {}).get('type') == 'log':
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    else:
        mark_values(axes, defaults['unit'], whole=defaults.get('decimals') == 0)
    axes.set_axisbelow(True)
    axes.grid(color=GRID, linewidth=0.7)
    axes.tick_params(colors=FAINT, labelsize=8, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for color, times in marks:
        for at in times:
            axes.axvline(datetime.datetime.fromtimestamp(at), color=color, linewidth=0.9,
                         linestyle=(0, (3, 3)), alpha=0.8)
    picture.figure.legend(*axes.get_legend_handles_labels(), loc='center left',
                          bbox_to_anchor=(  # below the axis
                              (left + 10) / WIDTH, (bottom + 14) / picture.height),
                          ncol=max(1, int(width // 95)), fontsize=7.5, frameon=False,
                          labelcolor=TEXT, handlelength=1.2, columnspacing=1.0,
                          handletextpad=0.4, borderpad=0)


def marks_of(board, source):
    """[(colour, the times at which something happened)] of the board's annotations"""
    marks = []
    for each in board['annotations']['list']:
        times = set()
        for _, values in source.series(each['expr']):
            last = None
            for at, _ in values:
                if last is None or at - last > source.step:
                    times.add(at)
                last = at
        marks.append((COLORS[each['iconColor']], sorted(times)))
    return marks


def draw(board, source):
    """Returns the picture and the titles of panels that answered nothing."""
    panels = [panel for panel in board['panels'] if not panel.get('collapsed')]
    picture = Picture(max(panel['gridPos']['y'] + panel['gridPos']['h'] for panel in panels))
    when = [datetime.datetime.fromtimestamp(at) for at in (source.start, source.end)]
    picture.text(14, picture.height - 30, board['title'], color=TEXT, fontsize=15, weight='bold')
    picture.text(WIDTH - 14, picture.height - 28,
                 f'{when[0]:%Y-%m-%d %H:%M:%S} to {when[1]:%H:%M:%S}   '
                 '¦ checkpoint (blue), member lost (red)', color=FAINT, fontsize=9, ha='right')
    marks = marks_of(board, source)
    empty = []
    for panel in panels:
        box = picture.box(panel['gridPos'])
        if panel['type'] == 'row':
            picture.text(box[0] + 4, box[1] + 6, panel['title'], color=TEXT, fontsize=11)
            continue
        picture.frame(box)
        picture.text(box[0] + 8, box[1] + box[3] - 18, panel['title'], color=TEXT, fontsize=9.5,
                     weight='bold')
        found = [(name_of(target, labels), values) for target in panel['targets']
                 for labels, values in source.series(target['expr'])]
        if not found:
            empty.append(panel['title'])
        elif panel['type'] == 'stat':
            draw_number(picture, panel, box, found)
        elif panel['type'] == 'bargauge':
            draw_bars(picture, panel, box, found)
        else:
            draw_lines(picture, panel, box, found, source, marks)
    return picture, empty


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('board')
    parser.add_argument('--prometheus', required=True)
    parser.add_argument('--start', type=float, required=True)
    parser.add_argument('--end', type=float, required=True)
    parser.add_argument('--output', required=True)
    parser.add_argument('--job', default='.+')
    parser.add_argument('--scrape', type=float, default=2, help='interval of scrapes')
    options = parser.parse_args()
    with open(options.board, encoding='utf-8') as file:
        board = json.load(file)
    picture, empty = draw(board, Source(options))
    picture.figure.savefig(options.output, dpi=100, facecolor=PAGE)
    for title in empty:
        print(f'{board["title"]}: {title}: no data')
    return 1 if empty else 0


if __name__ == '__main__':
    sys.exit(main())
