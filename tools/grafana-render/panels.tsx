// Panels. Time series, stat, bar gauge, table and text are Grafana's own components; state timeline,
// status history, pie, bar chart and heat map are drawn here, as they are not published apart from the server.
// Their colours, texts, units and mappings are Grafana's.
import * as data from '@grafana/data';
import { PanelPlugin, FieldType, getFieldDisplayName, getFieldDisplayValues } from '@grafana/data';
import { sceneUtils } from '@grafana/scenes';
import { BarGauge, BigValue, TimeSeries, VizRepeater } from '@grafana/ui';
import * as unstable from '@grafana/ui/unstable';
import React from 'react';
import { theme } from './host';

const GREY = '#9fa7b3';
const TEXT = '#ccccdc';
const FONT = 12;

const numeric = (frame: any) => frame.fields.filter((field: any) => field.type === FieldType.number);
const hidden = (field: any) => field.config?.custom?.hideFrom?.viz;
const shownText = (value: any) => `${value.prefix ?? ''}${value.text}${value.suffix ?? ''}`;

const Empty = ({ data: given, fieldConfig }: any) => given.errors?.length
  ? <div style={{ color: '#ff5286', padding: 10 }}>{given.errors[0].message}</div>
  : <div style={{ height: '100%', display: 'flex', alignItems: 'center', justifyContent: 'center', padding: 10, textAlign: 'center', color: GREY }}>
      {fieldConfig?.defaults?.noValue ?? 'No data'}
    </div>;

const Key = ({ entries }: { entries: Array<[string, string]> }) =>
  <div style={{ fontSize: FONT, color: TEXT, lineHeight: '18px' }}>
    {entries.map(([text, colour]) => <span key={text} style={{ marginRight: 12, whiteSpace: 'nowrap' }}>
      <span style={{ background: colour, width: 14, height: 4, borderRadius: 2, display: 'inline-block', marginRight: 6, verticalAlign: 'middle' }} />{text}
    </span>)}
  </div>;

const legendOf = (options: any) => ({ showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [], ...options?.legend });

const Series = (p: any) => {
  const frames = p.data.series.filter((frame: any) => numeric(frame).length && frame.length);
  if (!frames.length) return <Empty {...p} />;
  return <TimeSeries frames={frames} structureRev={p.data.structureRev ?? 1} timeRange={p.timeRange} timeZone={p.timeZone}
    width={p.width} height={p.height} legend={legendOf(p.options)} options={p.options} replaceVariables={p.replaceVariables}>
    {() => null}
  </TimeSeries>;
};

const values = (p: any, sparkline: boolean) => getFieldDisplayValues({
  fieldConfig: p.fieldConfig, reduceOptions: p.options.reduceOptions ?? { calcs: ['lastNotNull'], values: false, fields: '' },
  replaceVariables: p.replaceVariables, theme, data: p.data.series, sparkline, timeZone: p.timeZone,
});

const Stat = (p: any) => <VizRepeater getValues={() => values(p, p.options.graphMode !== 'none')} source={p.data} width={p.width}
  height={p.height} renderCounter={p.renderCounter} orientation={p.options.orientation ?? 'auto'}
  renderValue={({ value, width, height, count }: any) => <BigValue value={value.display} sparkline={value.sparkline} width={width}
    height={height} count={count} theme={theme} colorMode={p.options.colorMode ?? 'value'} graphMode={p.options.graphMode ?? 'area'}
    justifyMode={p.options.justifyMode ?? 'auto'} textMode={p.options.textMode ?? 'auto'} text={p.options.text} wideLayout={p.options.wideLayout ?? true} />} />;

const Bars = (p: any) => {
  if (!p.data.series.some((frame: any) => frame.length)) return <Empty {...p} />;
  const longest = Math.max(0, ...values(p, false).map((value: any) => (value.display.title ?? '').length));
  return <VizRepeater getValues={() => values(p, false)} getAlignmentFactors={(data as any).getDisplayValueAlignmentFactors} source={p.data}
    width={p.width} height={p.height} renderCounter={p.renderCounter} minVizHeight={p.options.minVizHeight ?? 16} itemSpacing={4}
    orientation={p.options.orientation ?? 'horizontal'}
    renderValue={({ value, width, height, alignmentFactors }: any) => <BarGauge value={value.display} width={width} height={height}
      orientation={p.options.orientation ?? 'horizontal'} field={value.field} theme={theme} itemSpacing={8} alignmentFactors={alignmentFactors}
      displayMode={p.options.displayMode ?? 'gradient'} display={value.view?.getFieldDisplayProcessor?.(value.colIndex)}
      valueDisplayMode={p.options.valueMode} namePlacement={p.options.namePlacement} text={p.options.text ?? (longest > 40 ? { titleSize: FONT } : undefined)}
      showUnfilled={p.options.showUnfilled ?? true} />} />;
};

const Grid = (p: any) => {
  const frame = p.data.series[0];
  if (!frame?.length) return <Empty {...p} />;
  const Table: any = (unstable as any).TableNG;
  (data as any).cacheFieldDisplayNames(p.data.series);
  return <Table data={frame} width={p.width} height={p.height} timeRange={p.timeRange} noHeader={p.options.showHeader === false}
    initialSortBy={p.options.sortBy} showTypeIcons={false} resizable fieldConfig={p.fieldConfig} enableSharedCrosshair={false}
    cellHeight={p.options.cellHeight} frozenColumns={p.options.frozenColumns?.left ?? 0}
    getActions={() => []} replaceVariables={p.replaceVariables} />;
};

const Text = (p: any) => <div style={{ padding: 8, overflow: 'hidden' }} className="markdown-html"
  dangerouslySetInnerHTML={{ __html: p.options.mode === 'html' ? p.options.content : (data as any).renderMarkdown(p.options.content ?? '') }} />;

const Pie = (p: any) => {
  const parts = values(p, false).map((value: any) => value.display).filter((value: any) => value.numeric > 0);
  if (!parts.length) return <Empty {...p} />;
  const total = parts.reduce((sum: number, part: any) => sum + part.numeric, 0);
  const outer = Math.min(p.width / 2, p.height) / 2 - 4;
  const inner = p.options.pieType === 'donut' ? outer * 0.6 : 0;
  const at = (angle: number, radius: number) => `${outer + 4 + radius * Math.cos(angle)},${outer + 4 + radius * Math.sin(angle)}`;
  let angle = -Math.PI / 2;
  return <div style={{ display: 'flex' }}>
    <svg width={2 * outer + 8} height={2 * outer + 8}>{parts.map((part: any, index: number) => {
      const next = angle + (part.numeric / total) * 2 * Math.PI - 1e-6;
      const big = next - angle > Math.PI ? 1 : 0;
      const path = `M${at(angle, outer)} A${outer},${outer} 0 ${big} 1 ${at(next, outer)} L${at(next, inner)} A${inner},${inner} 0 ${big} 0 ${at(angle, inner)} Z`;
      angle = next;
      return <path key={index} d={path} fill={part.color} />;
    })}</svg>
    <div style={{ padding: 8 }}>{parts.map((part: any) =>
      <Key key={part.title} entries={[[`${part.title} ${((100 * part.numeric) / total).toFixed(0)}%`, part.color]]} />)}</div>
  </div>;
};

// --- what has a time axis -----------------------------------------------------------------------------------
const clock = (at: number, span: number) => {
  const iso = new Date(at).toISOString();
  return span > 2 * 86400e3 ? iso.slice(5, 10) : iso.slice(11, 16);
};
const Axis = ({ from, to, x, y }: any) => Array.from({ length: 7 }, (_, index) => from + (index * (to - from)) / 6).map((at, index) =>
  <text key={index} x={x(at)} y={y} fontSize={FONT - 1} fill={GREY} textAnchor={index === 6 ? 'end' : 'middle'}>{clock(at, to - from)}</text>);
const wide = (names: string[]) => Math.min(320, 14 + 6.7 * Math.max(4, ...names.map((name) => name.length)));

const States = (history: boolean) => (p: any) => {
  const rows = p.data.series.flatMap((frame: any) => numeric(frame).concat(frame.fields.filter((f: any) => f.type === FieldType.string)).map(
    (field: any) => ({ times: frame.fields[0].values, field, name: getFieldDisplayName(field, frame, p.data.series) })));
  if (!rows.length) return <Empty {...p} />;
  const from = p.timeRange.from.valueOf(), to = p.timeRange.to.valueOf();
  const left = wide(rows.map((row: any) => row.name)), below = p.options.legend?.showLegend === false ? 18 : 40;
  const x = (at: number) => left + ((Math.max(from, Math.min(to, at)) - from) / (to - from)) * (p.width - left - 8);
  const high = (p.height - below) / rows.length, share = p.options.rowHeight ?? 0.9;
  const seen = new Map<string, string>();
  const drawn = rows.map((row: any, index: number) => {
    const { times, field } = row;
    const step = times[0] === undefined ? 0 : field.config.interval ?? (times.length > 1 ? times[1] - times[0] : to - from);
    const spans: any[] = [];
    times.forEach((at: number, number: number) => {
      const value = field.values[number], last = spans[spans.length - 1];
      if (value === null || value === undefined) return;
      if (!history && last && last.value === value && at - last.end < step * 1.5) last.end = at + step;
      else spans.push({ start: at, end: at + step, value });
    });
    return <g key={index}>
      <text x={4} y={(index + 0.5) * high + 4} fill={TEXT} fontSize={FONT}>{row.name}</text>
      {spans.map((span, number) => {
        const shown = field.display(span.value), width = Math.max(1, x(span.end) - x(span.start) - (history ? 1 : 0));
        if (x(span.start) >= x(to)) return null;
        seen.set(shownText(shown), shown.color);
        return <g key={number}>
          <rect x={x(span.start)} y={(index + (1 - share) / 2) * high} width={width} height={high * share} fill={shown.color} fillOpacity={0.85} />
          {p.options.showValue !== 'never' && high * share > 11 && width > 9 + 7 * shownText(shown).length &&
            <text x={x(span.start) + 4} y={(index + 0.5) * high + 4} fontSize={FONT - 1} fill={theme.colors.getContrastText(shown.color)}>{shownText(shown)}</text>}
        </g>;
      })}
    </g>;
  });
  return <div>
    <svg width={p.width} height={p.height - below + 18}>{drawn}<Axis from={from} to={to} x={x} y={p.height - below + 13} /></svg>
    {below > 18 && <Key entries={[...seen]} />}
  </div>;
};

const Heat = (p: any) => {
  const rows = p.data.series.flatMap((frame: any) => numeric(frame).map((field: any) =>
    ({ times: frame.fields[0].values, field, name: getFieldDisplayName(field, frame, p.data.series) })));
  if (!rows.length) return <Empty {...p} />;
  const from = p.timeRange.from.valueOf(), to = p.timeRange.to.valueOf();
  const left = wide(rows.map((row: any) => row.name));
  const x = (at: number) => left + ((Math.max(from, Math.min(to, at)) - from) / (to - from)) * (p.width - left - 8);
  const high = (p.height - 20) / rows.length;
  const all = rows.flatMap((row: any) => row.field.values.filter((value: any) => value !== null));
  const least = p.options.color?.min ?? Math.min(...all), most = p.options.color?.max ?? Math.max(...all);
  return <svg width={p.width} height={p.height}>
    {rows.map((row: any, index: number) => <g key={index}>
      <text x={4} y={(index + 0.5) * high + 4} fill={TEXT} fontSize={FONT}>{row.name}</text>
      {row.times.map((at: number, number: number) => {
        const value = row.field.values[number], step = row.times.length > 1 ? row.times[1] - row.times[0] : to - from;
        const share = most > least ? (value - least) / (most - least) : 0;
        return value === null ? null : <rect key={number} x={x(at)} y={index * high + 0.5} width={Math.max(1, x(at + step) - x(at))}
          height={high - 1} fill={`hsl(${260 - 210 * share} 70% ${20 + 45 * share}%)`} />;
      })}
    </g>)}
    <Axis from={from} to={to} x={x} y={p.height - 5} />
  </svg>;
};

// --- bar chart: a bar, or a stack of them, for each row ---------------------------------------------------------
const Chart = (p: any) => {
  const frame = p.data.series.find((one: any) => one.length && numeric(one).length);
  if (!frame) return <Empty {...p} />;
  const named = (name: string) => frame.fields.find((field: any) => getFieldDisplayName(field, frame) === name || field.name === name);
  const x = (p.options.xField && named(p.options.xField)) ?? frame.fields.find((field: any) => field.type === FieldType.string) ?? frame.fields[0];
  const fields = numeric(frame).filter((field: any) => field !== x && !hidden(field));
  const label = (row: number) => x.type === FieldType.time ? clock(x.values[row], 3 * 86400e3) : shownText(x.display(x.values[row]));
  const stacked = (p.options.stacking ?? 'none') !== 'none', shares = p.options.stacking === 'percent';
  const raw = (field: any, row: number) => Number(field.values[row]) || 0;
  const sums = Array.from({ length: frame.length }, (_, row) => fields.reduce((sum: number, f: any) => sum + Math.max(0, raw(f, row)), 0));
  const value = (field: any, row: number) => raw(field, row) / (shares ? sums[row] || 1 : 1);
  const ends = Array.from({ length: frame.length }, (_, row) => stacked
    ? [shares ? 1 : sums[row], fields.reduce((sum: number, f: any) => sum + Math.min(0, value(f, row)), 0)] : fields.map((f: any) => value(f, row))).flat();
  const most = Math.max(0, fields[0].config.max ?? -Infinity, ...ends), least = Math.min(0, ...ends);
  const across = (p.options.orientation ?? 'auto') === 'horizontal';
  const legend = legendOf(p.options).showLegend ? 22 : 0;
  const colour = (field: any, row: number) => field.display(field.values[row]).color;
  const series = (field: any) => (data as any).getFieldSeriesColor(field, theme).color;
  const labels = Array.from({ length: frame.length }, (_, row) => label(row));
  const left = across ? wide(labels) : 56, bottom = across ? 18 : 22;
  const wideOf = p.width - left - 12, highOf = p.height - legend - bottom;
  const band = (across ? highOf : wideOf) / frame.length, group = band * (p.options.groupWidth ?? 0.7);
  const length = (amount: number) => ((amount) / (most - least || 1)) * (across ? wideOf : highOf);
  const zero = across ? left + length(-least) : highOf - length(-least);
  const display = (amount: number) => shares ? `${Math.round(100 * amount)}%` : shownText(fields[0].display(amount));
  const ticks = Array.from({ length: 5 }, (_, index) => least + (index * (most - least)) / 4);
  return <div>
    <svg width={p.width} height={p.height - legend}>
      {ticks.map((tick, index) => across
        ? <g key={index}><line x1={zero + length(tick)} x2={zero + length(tick)} y1={0} y2={highOf} stroke="#2c3235" /><text x={zero + length(tick)} y={highOf + 13} fontSize={FONT - 1} fill={GREY} textAnchor="middle">{display(tick)}</text></g>
        : <g key={index}><line x1={left} x2={p.width - 8} y1={zero - length(tick)} y2={zero - length(tick)} stroke="#2c3235" /><text x={left - 6} y={Math.max(9, zero - length(tick) + 4)} fontSize={FONT - 1} fill={GREY} textAnchor="end">{display(tick)}</text></g>)}
      {labels.map((text, row) => {
        const start = row * band + (band - group) / 2;
        let up = 0, down = 0;
        return <g key={row}>
          {across ? <text x={left - 6} y={start + group / 2 + 4} fontSize={FONT} fill={TEXT} textAnchor="end">{text}</text>
            : <text x={left + start + group / 2} y={highOf + 15} fontSize={FONT} fill={TEXT} textAnchor="middle">{text}</text>}
          {fields.map((field: any, index: number) => {
            const amount = value(field, row), thick = stacked ? group : group / fields.length, shift = stacked ? 0 : index * thick;
            const base = stacked ? (amount < 0 ? down : up) : 0;
            if (stacked) amount < 0 ? (down += amount) : (up += amount);
            const a = zero + (across ? 1 : -1) * length(base), b = zero + (across ? 1 : -1) * length(base + amount);
            const box = across ? { x: Math.min(a, b), width: Math.abs(b - a), y: start + shift, height: Math.max(1, thick - 1) }
              : { x: left + start + shift, width: Math.max(1, thick - 1), y: Math.min(a, b), height: Math.abs(b - a) };
            return <rect key={index} {...box} fill={fields.length > 1 ? series(field) : colour(field, row)} />;
          })}
        </g>;
      })}
    </svg>
    {legend > 0 && <Key entries={fields.map((field: any) => [getFieldDisplayName(field, frame), series(field)])} />}
  </div>;
};

// --- registration: a plugin must name its own field options, or they are dropped ------------------------------------
const options = (given: Record<string, unknown>) => (builder: any) => {
  for (const [path, defaultValue] of Object.entries(given)) {
    builder.addCustomEditor({ id: path, path, name: path, defaultValue, editor: () => null, override: () => null, process: (v: any) => v, shouldApply: () => true, settings: {} });
  }
};
const HIDE = { hideFrom: { viz: false, legend: false, tooltip: false } };
// The colour mode that a panel has unless its JSON names one.
const COLOUR: Record<string, string> = { timeseries: 'palette-classic', barchart: 'palette-classic', piechart: 'palette-classic', 'state-timeline': 'continuous-GrYlRd' };
const PANELS: Array<[string, any, Record<string, unknown>?]> = [
  ['timeseries', Series, {
    ...HIDE, drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, lineStyle: undefined, fillOpacity: 0, fillBelowTo: undefined, gradientMode: 'none',
    spanNulls: false, insertNulls: false, showPoints: 'auto', pointSize: 5, axisPlacement: 'auto', axisLabel: '', axisColorMode: 'text', axisBorderShow: false,
    axisWidth: undefined, axisGridShow: undefined, axisCenteredZero: false, axisSoftMin: undefined, axisSoftMax: undefined, barAlignment: 0, barWidthFactor: 0.6,
    stacking: { mode: 'none', group: 'A' }, scaleDistribution: { type: 'linear' }, thresholdsStyle: { mode: 'off' }, transform: undefined, showValues: false,
  }],
  ['stat', Stat], ['bargauge', Bars], ['text', Text],
  ['table', Grid, { align: 'auto', cellOptions: { type: 'auto' }, filterable: false, inspect: false, width: undefined, minWidth: undefined, hidden: undefined, hideHeader: undefined, wrapHeaderText: undefined, wrapText: undefined }],
  ['piechart', Pie, HIDE], ['heatmap', Heat, HIDE], ['barchart', Chart, { ...HIDE, fillOpacity: 80, lineWidth: 1, gradientMode: 'none', axisPlacement: 'auto', axisLabel: '' }],
  ['state-timeline', States(false), { ...HIDE, fillOpacity: 70, lineWidth: 0 }], ['status-history', States(true), { ...HIDE, fillOpacity: 70, lineWidth: 1 }],
];

export function register(): void {
  for (const [pluginId, component, custom] of PANELS) {
    const plugin = new PanelPlugin(component);
    const settings = { byValueSupport: true, bySeriesSupport: true, preferThresholdsMode: false };
    const color: any = { settings, defaultValue: { mode: COLOUR[pluginId] ?? 'thresholds' } };
    plugin.useFieldConfig(custom ? { useCustomConfig: options(custom), standardOptions: { color } } : {} as any);
    (sceneUtils as any).registerRuntimePanelPlugin({ pluginId, plugin });
  }
}
