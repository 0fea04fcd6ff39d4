/** The element with an id. */
export const id = (name) => document.getElementById(name);

/** A new element: properties by name, children as elements or text; text is never read as markup. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
