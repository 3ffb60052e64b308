"""A webhook of your own, to see what `gradwatch monitor` sends: each alert is one line on the terminal.

python3 docs/examples/receive_alerts.py 9000
GRADWATCH_NOTIFY=http://127.0.0.1:9000 scripts/service

With GRADWATCH_NOTIFY_SECRET in the environment of both, what is not signed with it is refused.
"""

import hashlib
import hmac
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

SECRET = os.environ.get("GRADWATCH_NOTIFY_SECRET", "")
LONGEST = 1_000_000  # bytes; an alert has a few thousand


class Webhook(BaseHTTPRequestHandler):
    """Prints what is posted."""

    timeout = 10

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length) if length <= LONGEST else b""
        wanted = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        signed = self.headers.get("X-Gradwatch-Signature", "")
        genuine = not SECRET or hmac.compare_digest(wanted.encode(), signed.encode("utf-8", "replace"))
        if genuine and body:
            alert = json.loads(body)  # of a template it may hold anything
            told = [alert[key] for key in ("severity", "rule", "run", "summary", "url") if key in alert]
            print(*(told or [body.decode()]), flush=True)
        self.send_response(204 if genuine and body else 403)
        self.end_headers()

    def log_message(self, format, *args):
        """Nothing: the alerts are the output."""


HTTPServer(("127.0.0.1", int(sys.argv[1])), Webhook).serve_forever()
