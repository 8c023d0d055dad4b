// What the console's modules import. Read by ./make.
import htm from "htm";
import { h } from "preact";

export { h, render, Fragment, createContext } from "preact";
export {
  useCallback, useContext, useEffect, useErrorBoundary, useId, useLayoutEffect, useMemo, useReducer, useRef, useState,
} from "preact/hooks";
export const html = htm.bind(h);
