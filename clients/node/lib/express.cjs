'use strict';

// Express, Connect and node:http.
const { Claim, Protection, SHARED, keepResponse, parsedBody, send } = require('./http.cjs');

const UNREAD = 'onceExpress() must stand behind the parser of the body, such as express.json()';

function onceExpress(options) {
  const protection = new Protection(options);

  function bodyOf(request) {
    const { body } = request;
    // Parsers up to body-parser 1 leave an empty object for a body that is not of their type.
    const isUnread = typeof body === 'object' && body !== null && !ArrayBuffer.isView(body) && !request._body &&
      Object.keys(body).length === 0 && !(Number(request.headers['content-length']) <= 2);
    return parsedBody(request, body, isUnread, UNREAD);
  }

  return async function onceMiddleware(request, response, next) {
    let got;
    try {
      got = await protection.begin({
        method: request.method, url: request.originalUrl ?? request.url, header: (name) => request.headers[name],
        body: () => bodyOf(request), request,
      });
    } catch (error) {
      return next(error);
    }
    if (got === undefined) return next();
    if (!(got instanceof Claim)) return send(response, got);
    request.onceClaim = got;
    keepResponse(protection, response, got);
    protection.run(got, next);
  };
}

module.exports = { onceExpress, SHARED };
