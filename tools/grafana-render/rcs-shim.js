// The module's CommonJS default does not survive bundling.
import * as module from './node_modules/react-custom-scrollbars-2/lib/index.js';
const Scrollbars = module.Scrollbars ?? module.default?.Scrollbars ?? module.default?.default;
export default Scrollbars;
export { Scrollbars };
