// What the Grafana application would set up before its components can be used.
import * as data from '@grafana/data';
import * as runtime from '@grafana/runtime';
import { from, map } from 'rxjs';

const anything = data as any;
export const theme = data.createTheme({ colors: { mode: 'dark' } });

const editor = (id: string, defaultValue?: unknown, process?: unknown): any => ({
  id, path: id, name: id, defaultValue, editor: () => null, override: () => null,
  process: process ?? ((value: unknown) => value), shouldApply: () => true, settings: {},
});
const steps = [{ value: -Infinity, color: 'green' }, { value: 80, color: 'red' }];
const EDITORS = [
  'text', 'number', 'boolean', 'select', 'unit', 'color', 'thresholds', 'mappings', 'links', 'strings', 'slider',
  'fieldColor', 'radio', 'multi-select', 'stats-picker', 'timezone', 'fieldname-picker', 'dashboard-uid', 'cellcolor',
  'actions',
];

export function prepare(): void {
  const config = runtime.config as any;
  config.theme2 = theme;
  config.bootData ??= { user: {}, settings: {} };
  config.featureToggles ??= {};
  data.standardFieldConfigEditorRegistry.setInit(() => [
    editor('displayName', undefined, anything.displayNameOverrideProcessor),
    editor('unit', undefined, anything.unitOverrideProcessor),
    editor('min', undefined, anything.numberOverrideProcessor),
    editor('max', undefined, anything.numberOverrideProcessor),
    editor('decimals', undefined, anything.numberOverrideProcessor),
    editor('noValue'),
    editor('color', { mode: 'thresholds' }),
    editor('thresholds', { mode: 'absolute', steps }, anything.thresholdsOverrideProcessor),
    editor('mappings', [], anything.valueMappingsOverrideProcessor),
    editor('links', [], anything.dataLinksOverrideProcessor),
    editor('filterable'),
    editor('fieldMinMax'),
  ]);
  data.standardEditorsRegistry.setInit(() => EDITORS.map((id) => ({ id, name: id, editor: () => null }) as any));
  const transformers = Object.values(anything.standardTransformers as Record<string, any>);
  const once = [...new Map(transformers.map((one) => [one.id, one])).values()];
  data.standardTransformersRegistry.setInit(() =>
    once.map((one) => ({ id: one.id, name: one.name, transformation: async () => one, editor: () => null }) as any));
  anything.setTimeZoneResolver?.(() => 'utc');

  const services = runtime as any;
  services.setRunRequest((source: any, request: any) => from(source.query(request) as any).pipe(map((answer: any) => ({
    state: answer.state ?? data.LoadingState.Done,
    series: (answer.data ?? []).map((frame: any) => data.toDataFrame(frame)),
    timeRange: request.range, request, errors: answer.errors, error: answer.error,
  }))));
  services.setPluginImportUtils({
    importPanelPlugin: async (id: string) => { throw new Error(`no adapter for panel ${id}`); },
    getPanelPluginFromCache: () => undefined,
  });
  services.setAppEvents?.(new data.EventBusSrv());
  services.setEchoSrv?.({ flush() {}, addBackend() {}, addEvent() {} });
  services.setLocationSrv?.({ update() {} });
}
