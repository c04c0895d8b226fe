// A page that shows one dashboard: /dashboard.json, with the time range and the variables of the address.
import {
  CustomVariable, EmbeddedScene, SceneDataTransformer, SceneGridItem, SceneGridLayout, SceneGridRow, SceneQueryRunner,
  SceneTimeRange, SceneVariableSet, VariableValueSelectors, VizPanel,
} from '@grafana/scenes';
import { ThemeContext } from '@grafana/data';
import { GlobalStyles, PortalContainer } from '@grafana/ui';
import React from 'react';
import { createRoot } from 'react-dom/client';
import { MemoryRouter } from 'react-router-dom';
import { prepare, theme } from './host';
import { register as registerPanels } from './panels';
import { api, joined, register as registerPrometheus, state } from './prometheus';

const page = window as any;
const WIDTH = 1440;
const CELL = 38; // pixels of a grid row and the space below it
const SOURCE = { uid: 'prom', type: 'prometheus' };

// Rows that are collapsed are shown open, and what comes after them moves down.
function unfolded(panels: any[]): any[] {
  const found: any[] = [];
  let moved = 0;
  for (const panel of [...panels].sort((a, b) => a.gridPos.y - b.gridPos.y || a.gridPos.x - b.gridPos.x)) {
    const y = panel.gridPos.y + moved;
    found.push({ ...panel, gridPos: { ...panel.gridPos, y } });
    if (panel.type === 'row' && panel.panels?.length) {
      const top = Math.min(...panel.panels.map((inner: any) => inner.gridPos.y));
      const bottom = Math.max(...panel.panels.map((inner: any) => inner.gridPos.y + inner.gridPos.h));
      for (const inner of panel.panels) found.push({ ...inner, gridPos: { ...inner.gridPos, y: inner.gridPos.y - top + y + 1 } });
      moved += bottom - top;
    }
  }
  return found;
}

async function variables(list: any[], chosen: URLSearchParams, from: number, to: number): Promise<any[]> {
  const made: any[] = [];
  const known: Record<string, string> = {};
  const filled = (text: string) => text.replace(/\$\{?(\w+)(?::\w+)?\}?/g, (whole, name) => known[name] ?? whole);
  for (const one of list) {
    if (one.type === 'datasource') {
      made.push(new CustomVariable({ name: one.name, label: one.label, query: 'prom', value: 'prom', text: 'prom', hide: one.hide }));
      continue;
    }
    let values: string[] = String(one.query ?? '').split(',').map((value) => value.trim());
    if (one.type === 'query') {
      const query = filled(typeof one.query === 'string' ? one.query : one.query?.query ?? one.definition ?? '');
      const asked = /label_values\(\s*(?:(.+),\s*)?(\w+)\s*\)/s.exec(query);
      if (!asked) throw new Error(`variable ${one.name}: ${query} is no label_values()`);
      const answer = await api(`label/${asked[2]}/values`, { 'match[]': asked[1] ?? '{__name__!=""}', start: from, end: to });
      values = (answer.data ?? []).filter((value: string) => !one.regex || new RegExp(String(one.regex).replace(/^\/|\/$/g, '')).test(value));
      page.__queries.push({ expr: query, status: answer.status, count: values.length, error: answer.error });
    }
    const picked = chosen.getAll(`var-${one.name}`);
    const all = one.includeAll && !picked.length;
    const value = all ? '$__all' : one.multi ? (picked.length ? picked : values.slice(0, 1)) : picked[0] ?? values[0] ?? '';
    known[one.name] = all ? one.allValue ?? joined(values) : joined(value);
    made.push(new CustomVariable({
      name: one.name, label: one.label, query: values.join(','), isMulti: one.multi, includeAll: one.includeAll, allValue: one.allValue || undefined,
      value, text: all ? 'All' : value, hide: one.hide,
    }));
  }
  return made;
}

function item(panel: any): any {
  const { x, y, w, h } = panel.gridPos;
  if (panel.type === 'row') return new SceneGridRow({ title: panel.title, isCollapsed: false, isCollapsible: false, y, children: [] } as any);
  const asked = panel.targets?.length
    ? new SceneQueryRunner({
        datasource: SOURCE, queries: panel.targets.map((target: any) => ({ ...target, datasource: SOURCE })),
        maxDataPoints: panel.maxDataPoints ?? Math.round((WIDTH * w) / 24), minInterval: panel.interval,
      })
    : undefined;
  const data = asked && panel.transformations?.length ? new SceneDataTransformer({ $data: asked, transformations: panel.transformations }) : asked;
  // A panel with a range of its own looks back from now, or from some time before.
  const until = panel.timeShift ? `now-${panel.timeShift}` : 'now';
  const time = panel.timeFrom ? new SceneTimeRange({ from: `${until}-${panel.timeFrom}`, to: until, timeZone: 'utc' }) : undefined;
  return new SceneGridItem({
    x, y, width: w, height: h,
    body: new VizPanel({
      key: `panel-${panel.id}`, pluginId: panel.type, title: panel.title, description: panel.description, options: panel.options ?? {},
      fieldConfig: panel.fieldConfig ?? { defaults: {}, overrides: [] }, $data: data, $timeRange: time,
      displayMode: panel.transparent ? 'transparent' : 'default', hoverHeader: false,
    } as any),
  });
}

class Boundary extends React.Component<any, any> {
  state: any = {};
  static getDerivedStateFromError(error: any) { return { error }; }
  componentDidCatch(error: any) { console.error(error?.stack ?? error); }
  render() { return this.state.error ? <pre>{String(this.state.error?.stack)}</pre> : this.props.children; }
}

async function main(): Promise<void> {
  prepare();
  registerPrometheus();
  registerPanels();
  const address = new URLSearchParams(location.search);
  const dashboard = await (await fetch('/dashboard.json')).json();
  const range = new SceneTimeRange({ from: address.get('from') ?? dashboard.time?.from ?? 'now-1h', to: address.get('to') ?? dashboard.time?.to ?? 'now', timeZone: 'utc' });
  const { from, to } = range.state.value;
  const chosen = await variables(dashboard.templating?.list ?? [], address, from.valueOf() / 1000, to.valueOf() / 1000);
  const panels = unfolded(dashboard.panels);
  page.__height = 96 + CELL * Math.max(...panels.map((panel) => panel.gridPos.y + panel.gridPos.h));
  state.scene = new EmbeddedScene({
    $timeRange: range, $variables: new SceneVariableSet({ variables: chosen as any }),
    body: new SceneGridLayout({ children: panels.map(item) } as any), controls: [new VariableValueSelectors({})],
  });
  createRoot(document.getElementById('root')!).render(
    <Boundary><MemoryRouter><ThemeContext.Provider value={theme}>
      <GlobalStyles isExtensionSidebarOpen={false as any} />
      <div style={{ width: WIDTH - 16, minHeight: '100vh', background: theme.colors.background.canvas, color: TEXT, padding: 8 }}>
        <div style={{ display: 'flex', justifyContent: 'space-between', margin: 4 }}>
          <h3 style={{ margin: 0 }}>{dashboard.title}</h3>
          <span>{from.utc().format('YYYY-MM-DD HH:mm')} to {to.utc().format('YYYY-MM-DD HH:mm')} UTC</span>
        </div>
        <state.scene.Component model={state.scene} />
      </div>
      <PortalContainer />
    </ThemeContext.Provider></MemoryRouter></Boundary>);
}
const TEXT = theme.colors.text.primary;
main().catch((error) => { page.__failed = String(error?.stack ?? error); document.body.innerText = page.__failed; });
