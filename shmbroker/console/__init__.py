"""The console: a page for browsers that shows a family, its topics and their records.

access    who may ask: host, origin, token; pure
server    HTTP: requests to answers and streams of events
api       what each path answers
shown     bytes that may be anything, as JSON; pure
messages  records: pages of them, searches, live tails
history   what was seen: lag of groups, things that happened; bounded
writes    the three things that can be changed, where that is allowed
settings_shown, group_details, put_aside: what single pages show
static/   the page: HTML, CSS, JavaScript modules
"""
