"""The console: a page for browsers that shows a family, its topics and their records.

access    who may ask: host, origin, token; pure
server    HTTP: requests to answers and streams of events
api       what each path answers; record_pages: those of records; answers: what they share
shown     bytes that may be anything, as JSON; pure
messages  records: pages of them, searches, live tails; topic_reader: what brokers are asked
history   what was seen: lag of groups, things that happened; bounded
writes    the three things that can be changed, where that is allowed
settings_shown, group_details, put_aside: what single pages show
static/   the page: HTML, CSS, JavaScript modules
"""
