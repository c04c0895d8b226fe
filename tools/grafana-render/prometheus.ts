// Prometheus as a data source, through the page's own server. Every query is noted in window.__queries.
import { FieldType, LoadingState } from '@grafana/data';
import { RuntimeDataSource, sceneGraph, sceneUtils } from '@grafana/scenes';
import { from } from 'rxjs';

const SCRAPE_S = 30; // as the data source's "scrape interval" would say
const page = window as any;

export const state: { scene: any; notes: Record<number, string> } = { scene: undefined, notes: {} };

export async function api(path: string, parameters: Record<string, string | number>): Promise<any> {
  const query = new URLSearchParams(Object.entries(parameters).map(([key, value]) => [key, String(value)]));
  return (await fetch(`/api/v1/${path}?${query}`)).json();
}

const UNITS: Record<string, number> = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86400, w: 604800 };
export function seconds(text: string | undefined): number {
  const found = /^>?(\d+(?:\.\d+)?)(ms|[smhdw])$/.exec(text ?? '');
  return found ? Number(found[1]) * UNITS[found[2]] : 0;
}

const escaped = (value: string) => value.replace(/[.*+?^${}()|[\]\\]/g, '\\\\$&');
// As Grafana's own Prometheus data source writes variables with several values.
export const joined = (value: unknown): string =>
  Array.isArray(value) ? (value.length === 1 ? escaped(value[0]) : `(${value.map(escaped).join('|')})`) : String(value);

function legend(labels: Record<string, string>, format: string | undefined): string {
  if (format && format !== '__auto') return format.replace(/{{\s*(\w+)\s*}}/g, (_, name) => labels[name] ?? '');
  const { __name__: name = '', ...rest } = labels;
  return `${name}{${Object.entries(rest).map(([key, value]) => `${key}="${value}"`).join(', ')}}`;
}

function table(target: any, several: boolean, result: any[]): any {
  const labels = [...new Set(result.flatMap((one) => Object.keys(one.metric)))].sort();
  const rows = result.flatMap((one) => (one.values ?? [one.value]).map((value: any) => [one.metric, value]));
  return {
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, config: {}, values: rows.map(([, value]) => value[0] * 1000) },
      ...labels.map((label) => ({
        name: label, type: FieldType.string, config: { filterable: true },
        values: rows.map(([metric]) => metric[label] ?? ''),
      })),
      {
        name: several ? `Value #${target.refId}` : 'Value', type: FieldType.number, config: {},
        values: rows.map(([, value]) => Number(value[1])),
      },
    ],
  };
}

function series(target: any, step: number, one: any): any {
  const points = one.values ?? [one.value];
  const name = legend(one.metric, target.legendFormat);
  return {
    refId: target.refId, name,
    fields: [
      { name: 'Time', type: FieldType.time, config: { interval: step * 1000 }, values: points.map((p: any) => p[0] * 1000) },
      {
        name: 'Value', type: FieldType.number, labels: one.metric, config: { displayNameFromDS: name },
        values: points.map((p: any) => Number(p[1])),
      },
    ],
  };
}

class Prometheus extends RuntimeDataSource {
  query(request: any): any {
    return from(this.answers(request));
  }

  async answers(request: any): Promise<any> {
    const frames: any[] = [];
    const errors: any[] = [];
    const start = request.range.from.valueOf() / 1000;
    const end = request.range.to.valueOf() / 1000;
    const shown = request.targets.filter((target: any) => !target.hide);
    for (const target of shown) {
      const least = seconds(target.interval) || SCRAPE_S;
      const step = Math.max(1, Math.ceil((request.intervalMs ?? 15000) / 1000), seconds(target.interval));
      const given: Record<string, string> = {
        __rate_interval: `${Math.max(step + least, 4 * least)}s`,
        __interval: `${step}s`, __interval_ms: `${step * 1000}`,
        __range: `${Math.round(end - start)}s`, __range_s: `${Math.round(end - start)}`,
        __range_ms: `${Math.round((end - start) * 1000)}`,
      };
      const scoped = Object.fromEntries(Object.entries(given).map(([key, value]) => [key, { value, text: value }]));
      const expr = sceneGraph.interpolate(state.scene, target.expr, { ...request.scopedVars, ...scoped }, joined);
      const aligned = { start: Math.floor(start / step) * step, end: Math.floor(end / step) * step, step };
      const answer = target.instant
        ? await api('query', { query: expr, time: end })
        : await api('query_range', { query: expr, ...aligned });
      const result = answer.data?.result ?? [];
      page.__queries.push({ expr, status: answer.status, count: result.length, error: answer.error });
      if (answer.status !== 'success') errors.push({ message: answer.error, refId: target.refId });
      else if (answer.data.resultType === 'scalar') frames.push(series(target, step, { metric: {}, value: result }));
      else if (target.format === 'table') frames.push(table(target, shown.length > 1, result));
      else frames.push(...result.map((one: any) => series(target, step, one)));
    }
    return { data: frames, errors, state: errors.length ? LoadingState.Error : LoadingState.Done };
  }

  testDatasource() {
    return Promise.resolve({ status: 'success', message: 'ok' });
  }
}

export function register(): void {
  page.__queries = [];
  (sceneUtils as any).registerRuntimeDataSource({ dataSource: new Prometheus('prometheus', 'prom') });
}
