"""Records as forty and more public sources write them, and the mapping that a person who knows the source would choose.

A shape is (name, record of a number, src, dst, time, form[, doubt[, deletes]]). Several right paths are a tuple, and "" means that there is
none. `doubt` is a part of the doubt that names what no mapping can do yet, or what has to be looked at. Values are drawn by a fixed rule, so that users and items come back.
"""

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

S0 = 1_795_000_000


class Shape(NamedTuple):
    name: str
    record: Any
    src: Any
    dst: Any
    time: Any
    form: str
    doubt: str = ""
    deletes: Any = None


def d(i, n, salt=1):
    """A number below n that looks drawn."""
    return (i * 2654435761 + salt * 40503 + i * i * 97) % 100_003 % n


def s(i):
    return S0 + 7 * i


def iso(i, form="%Y-%m-%dT%H:%M:%SZ", back=0):
    return datetime.fromtimestamp(s(i) - back, UTC).strftime(form)


def ip(i, n, salt=1):
    return f"10.{salt}.0.{d(i, n, salt)}"


def hexa(i, salt=1, size=12):
    return f"{(i + 1) * 0x9E3779B97F4A7C15 * salt % 2**64:016x}"[:size]


def op(i, created, updated, deleted):
    """One of three operations: mostly the first."""
    return deleted if i % 7 == 6 else updated if i % 7 == 3 else created


def uuid(i, salt=1):
    h = hexa(i, salt, 16) + hexa(i, salt + 2, 16)
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-9{h[17:20]}-{h[20:32]}"


def order(i, **more):
    return {"id": i, "customer_id": d(i, 12), "product_id": 40 + d(i, 9, 2), "amount": d(i, 90) + 0.5, "created_at": s(i) * 1000} | more


SHAPES = [
    # Cases of the field, then public sources.
    Shape("osm changes", lambda i: {"type": ("node", "way")[i % 3 == 0], "id": 100 + d(i, 60), "user": f"u{d(i, 9)}", "uid": d(i, 9), "changeset": 7_000 + i // 4,
          "timestamp": iso(i), "version": 1 + d(i, 3), "visible": True, "lat": 51.1 + i / 100, "lon": 13.2}, ("user", "uid"), "id", "timestamp", "iso8601"),
    Shape("debezium, flattened", lambda i: order(i, __deleted="true" if i % 6 == 5 else "false", __op="d" if i % 6 == 5 else "c", __source_ts_ms=s(i) * 1000 + 5),
          "customer_id", "product_id", "created_at", "ms", "__deleted marks deletes (true)", {"where": {"__deleted": ["true"]}}),
    Shape("order with items", lambda i: {"user": d(i, 9), "ts": s(i) * 1000, "items": [{"id": f"a{d(i, 7, k)}", "qty": 1 + k} for k in range(1 + i % 3)]},
          "user", "items.id", "ts", "ms", "items has up to 3 elements, each an edge of its own"),
    Shape("segment track", lambda i: {"type": "track", "event": "Product Viewed", "messageId": uuid(i), "anonymousId": f"an-{d(i, 11)}",
          "userId": f"u-{d(i, 9)}" if i % 3 == 1 else None, "timestamp": iso(i), "receivedAt": iso(i, back=-1), "sentAt": iso(i), "originalTimestamp": iso(i),
          "context": {"ip": ip(i, 9), "library": {"name": "analytics.js", "version": "4.1"}, "page": {"url": f"https://shop/p{d(i, 8)}", "path": f"/p{d(i, 8)}"},
          "userAgent": "Mozilla/5.0"}, "properties": {"product_id": f"p{d(i, 8)}", "price": 3.5 + d(i, 4)}}, ["userId", "anonymousId"], "properties.product_id", "timestamp", "iso8601",
          "src is the first of userId, anonymousId that has a value"),
    Shape("segment group", lambda i: {"type": "group", "userId": f"u{d(i, 20)}", "groupId": f"g{d(i, 5, 2)}", "messageId": uuid(i), "timestamp": iso(i), "receivedAt": iso(i, back=-1),
          "traits": {"name": "X"}, "context": {"ip": ip(i, 9)}}, "userId", "groupId", "timestamp", "iso8601"),
    Shape("okta system log", lambda i: {"uuid": uuid(i), "published": iso(i), "eventType": "user.session.start", "severity": "INFO", "actor": {"id": f"00u{d(i, 9)}", "type": "User",
          "alternateId": f"u{d(i, 9)}@x.org"}, "client": {"ipAddress": ip(i, 9)}, "target": [{"id": f"0oa{d(i, 6)}", "type": "AppInstance"}], "outcome": {"result": "SUCCESS"}},
          "actor.id", "target.id", "published", "iso8601", "target has one element in all of these records: of several, each would be an edge of its own"),
    Shape("matrix room events", lambda i: {"type": "m.room.message", "sender": f"@u{d(i, 9)}:x.org", "room_id": f"!r{d(i, 5)}:x.org", "event_id": f"${hexa(i)}", "origin_server_ts": s(i) * 1000,
          "content": {"body": "hi", "msgtype": "m.text"}, "unsigned": {"age": 5}}, "sender", "room_id", "origin_server_ts", "ms"),
    Shape("cloudevents", lambda i: {"specversion": "1.0", "id": uuid(i), "source": "/shop", "type": "com.shop.view", "time": iso(i), "datacontenttype": "application/json",
          "data": {"user": d(i, 12), "item": f"b{d(i, 9, 2)}"}}, "user", "item", "$envelope.time", "iso8601", "the time is that of the envelope"),
    Shape("citations by year", lambda i: {"author_id": d(i, 9), "paper_id": 500 + d(i, 20), "year": 2000 + i // 4}, "author_id", "paper_id", "year", "iso8601", "year is read as dates in digits"),
    Shape("rudderstack identify and track", lambda i: {"channel": "web", "type": ("track", "page")[i % 2], "event": ("Song Played", "Song Liked")[i % 2], "userId": f"u{d(i, 9)}",
          "anonymousId": uuid(d(i, 9)), "originalTimestamp": iso(i), "sentAt": iso(i), "properties": {"songId": f"s{d(i, 9, 2)}", "seconds": d(i, 200)}},
          ("userId", "anonymousId"), "properties.songId", "originalTimestamp", "iso8601"),
    Shape("zeek conn", lambda i: {"ts": s(i) + 0.5, "uid": f"C{hexa(i)}", "id.orig_h": ip(i, 8), "id.orig_p": 40_000 + d(i, 900), "id.resp_h": ip(i, 6, 2), "id.resp_p": (443, 53)[i % 2],
          "proto": ("tcp", "udp")[i % 2], "orig_bytes": 300 + d(i, 600), "resp_bytes": d(i, 9000), "conn_state": "SF"}, r"id\.orig_h", r"id\.resp_h", "ts", "s"),
    Shape("mongodb's connector", lambda i: {"before": None, "after": json.dumps({"_id": {"$oid": hexa(i, 3, 16)}, "user_id": {"$numberLong": str(d(i, 9))}, "item": f"b{d(i, 7, 2)}",
          "at": {"$date": s(i) * 1000}}), "op": "c", "ts_ms": s(i) * 1000}, "user_id.$numberLong", "item", "at.$date", "ms", "`after` is JSON as text"),
    Shape("otlp spans", lambda i: {"traceId": hexa(i), "resource": f"svc{d(i, 6)}", "peer": f"db{d(i, 7, 2)}", "startTimeUnixNano": f"{s(i)}000000000"},
          "resource", "peer", "startTimeUnixNano", "ns"),
    Shape("snowplow", lambda i: {"app_id": "shop", "platform": "web", "collector_tstamp": iso(i, "%Y-%m-%d %H:%M:%S.125", -2), "dvce_created_tstamp": iso(i, "%Y-%m-%d %H:%M:%S.125"),
          "etl_tstamp": iso(i, "%Y-%m-%d %H:%M:%S.125", -9), "derived_tstamp": iso(i, "%Y-%m-%d %H:%M:%S.125"), "event": "page_view", "event_id": uuid(i),
          "user_id": None, "user_ipaddress": ip(i, 9), "domain_userid": uuid(d(i, 9), 5), "network_userid": uuid(d(i, 9), 7), "domain_sessionidx": 1 + d(i, 3),
          "page_url": f"https://shop/{d(i, 8, 2)}", "page_urlscheme": "https", "page_urlhost": "shop", "page_urlpath": f"/{d(i, 8, 2)}", "br_lang": "de", "dvce_type": "Mobile"},
          ("domain_userid", "network_userid"), ("page_url", "page_urlpath"), ("derived_tstamp", "collector_tstamp", "dvce_created_tstamp"), "iso8601"),
    Shape("ga4 export", lambda i: {"event_date": iso(i, "%Y%m%d"), "event_timestamp": s(i) * 1_000_000, "event_name": ("view_item", "purchase")[i % 3 == 0],
          "user_pseudo_id": f"{10**9 + d(i, 9)}.17", "user_id": None, "user_first_touch_timestamp": s(d(i, 9)) * 1_000_000, "stream_id": 17, "platform": "WEB",
          "event_params": [{"key": "page_location", "value": {"string_value": f"https://shop/{d(i, 8)}"}}, {"key": "ga_session_id", "value": {"int_value": i}}],
          "device": {"category": ("mobile", "desktop")[i % 2]}, "geo": {"country": "DE"}, "items": [{"item_id": f"SKU{d(i, 8)}", "price": 2.5 + k} for k in range(1 + i % 2)]},
          "user_pseudo_id", "items.item_id", "event_timestamp", "us", "items has up to 2 elements"),
    Shape("matomo visits", lambda i: {"idSite": 1, "idVisit": 100 + i, "visitIp": ip(i, 9), "visitorId": hexa(d(i, 9)), "serverTimestamp": s(i), "visitDuration": d(i, 90), "actions": 2,
          "actionDetails": [{"type": "action", "url": f"https://shop/{d(i, 8, k)}", "pageTitle": f"P{d(i, 8, k)}", "timestamp": s(i) + k} for k in range(2)], "browser": "Firefox"},
          "visitorId", ("actionDetails.url", "actionDetails.pageTitle"), ("serverTimestamp", "actionDetails.timestamp"), "s", "actionDetails has up to 2 elements"),
    Shape("mixpanel export", lambda i: {"event": ("Play", "Skip")[i % 2], "properties": {"time": s(i), "distinct_id": f"d{d(i, 9)}", "$insert_id": hexa(i), "$city": "Kiel", "mp_lib": "web",
          "song": f"s{d(i, 8, 2)}"}}, "properties.distinct_id", "properties.song", "properties.time", "s"),
    Shape("amplitude export", lambda i: {"$insert_id": uuid(i), "amplitude_id": 5_000 + d(i, 9), "user_id": f"u{d(i, 9)}", "device_id": uuid(d(i, 9)), "session_id": s(i // 5) * 1000, "app": 321,
          "event_type": ("watch", "like")[i % 2], "event_time": iso(i, "%Y-%m-%d %H:%M:%S.250"), "client_event_time": iso(i, "%Y-%m-%d %H:%M:%S.200"),
          "server_upload_time": iso(i, "%Y-%m-%d %H:%M:%S.900", -5), "event_properties": {"video_id": f"v{d(i, 8, 2)}", "position": d(i, 300)}, "country": "Germany"},
          "user_id", "event_properties.video_id", ("event_time", "client_event_time"), "iso8601"),
    Shape("stripe charges", lambda i: {"id": f"evt_{hexa(i)}", "object": "event", "type": ("charge.succeeded", "charge.failed")[i % 4 == 0], "created": s(i), "livemode": True, "data": {"object": {
          "id": f"ch_{hexa(i, 3)}", "object": "charge", "customer": f"cus_{d(i, 9)}", "amount": 100 * d(i, 90), "currency": "eur", "created": s(i), "paid": i % 4 > 0,
          "payment_method_details": {"card": {"brand": "visa", "country": "DE", "fingerprint": f"fp{d(i, 12, 2)}", "last4": f"{d(i, 12, 2):04}"}}}}},
          "data.object.customer", "data.object.payment_method_details.card.fingerprint", ("created", "data.object.created"), "s", "type is one of charge.failed, charge.succeeded"),
    Shape("github events", lambda i: {"id": str(9**9 + i), "type": ("WatchEvent", "PushEvent")[i % 2], "actor": {"id": d(i, 9), "login": f"u{d(i, 9)}", "display_login": f"u{d(i, 9)}",
          "gravatar_id": "", "url": f"https://api.github.com/users/u{d(i, 9)}"}, "repo": {"id": 80 + d(i, 8, 2), "name": f"o/r{d(i, 8, 2)}", "url": f"https://api.github.com/repos/o/r{d(i, 8, 2)}"},
          "payload": {"push_id": 5_000 + i, "size": 1} if i % 2 else {"action": "started"}, "public": True, "created_at": iso(i)},
          ("actor.id", "actor.login"), ("repo.id", "repo.name"), "created_at", "iso8601"),
    Shape("wikipedia recent changes", lambda i: {"$schema": "/mediawiki/recentchange/1.0.0", "meta": {"uri": f"https://de.wikipedia.org/wiki/P{d(i, 8, 2)}", "request_id": uuid(i), "id": uuid(i, 5),
          "domain": "de.wikipedia.org", "stream": "mediawiki.recentchange", "dt": iso(i), "topic": "eqiad.mediawiki.recentchange", "partition": 0, "offset": 5_000 + i}, "id": 7_000 + i,
          "type": ("edit", "categorize")[i % 5 == 0], "namespace": 0, "title": f"P{d(i, 8, 2)}", "comment": f"c{i}", "timestamp": s(i), "user": f"U{d(i, 9)}", "bot": i % 4 == 0, "minor": i % 3 == 0,
          "length": {"old": 900 + d(i, 90), "new": 910 + d(i, 90)}, "revision": {"old": 60_000 + i, "new": 60_001 + i}, "server_name": "de.wikipedia.org", "wiki": "dewiki"},
          "user", "title", ("timestamp", "meta.dt"), "s"),
    Shape("suricata eve", lambda i: {"timestamp": iso(i, "%Y-%m-%dT%H:%M:%S.123456+0000"), "flow_id": 10**15 + i, "event_type": ("flow", "dns")[i % 3 == 0], "src_ip": ip(i, 8), "src_port": 40_000 + d(i, 99),
          "dest_ip": ip(i, 6, 2), "dest_port": (443, 53)[i % 2], "proto": "TCP", "flow": {"pkts_toserver": d(i, 90), "bytes_toserver": d(i, 9000), "start": iso(i, "%Y-%m-%dT%H:%M:%S.023456+0000")}},
          "src_ip", "dest_ip", "timestamp", "iso8601"),
    Shape("cloudtrail", lambda i: {"eventVersion": "1.08", "userIdentity": {"type": "IAMUser", "principalId": f"AID{d(i, 9)}", "arn": f"arn:aws:iam::1:user/u{d(i, 9)}", "accountId": "1",
          "userName": f"u{d(i, 9)}"}, "eventTime": iso(i), "eventSource": ("s3.amazonaws.com", "ec2.amazonaws.com")[i % 2], "eventName": ("GetObject", "PutObject", "ListBuckets")[i % 3],
          "awsRegion": "eu-west-1", "sourceIPAddress": ip(i, 7), "userAgent": "aws-cli/2", "requestParameters": {"bucketName": f"b{d(i, 8, 2)}"}, "requestID": hexa(i), "eventID": uuid(i)},
          ("userIdentity.arn", "userIdentity.userName", "userIdentity.principalId"), ("requestParameters.bucketName", "eventName"), "eventTime", "iso8601"),
    Shape("vpc flow logs", lambda i: {"version": "2", "account-id": "123", "interface-id": f"eni-{d(i, 4)}", "srcaddr": ip(i, 8), "dstaddr": ip(i, 6, 2), "srcport": str(40_000 + d(i, 99)), "dstport": "443",
          "protocol": "6", "packets": str(d(i, 90)), "bytes": str(100 + d(i, 9000)), "start": str(s(i)), "end": str(s(i) + 60), "action": ("ACCEPT", "REJECT")[i % 5 == 0], "log-status": "OK"},
          "srcaddr", "dstaddr", "start", "s"),
    Shape("nginx", lambda i: {"time_local": iso(i, "%d/%b/%Y:%H:%M:%S +0000"), "time_iso8601": iso(i, "%Y-%m-%dT%H:%M:%S+00:00"), "remote_addr": ip(i, 9), "remote_user": "", "request": f"GET /p{d(i, 8)} HTTP/1.1",
          "request_method": "GET", "request_uri": f"/p{d(i, 8)}", "status": "200", "body_bytes_sent": str(d(i, 9000)), "request_time": "0.012", "http_user_agent": "curl/8", "request_id": hexa(i)},
          "remote_addr", "request_uri", "time_iso8601", "iso8601"),
    Shape("kubernetes audit", lambda i: {"kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": uuid(i), "stage": "ResponseComplete", "requestURI": f"/api/v1/pods/p{d(i, 8)}",
          "verb": ("get", "list")[i % 2], "user": {"username": f"sa:{d(i, 9)}", "groups": ["system:authenticated"]}, "sourceIPs": [ip(i, 5)], "userAgent": "kubelet/v1",
          "objectRef": {"resource": "pods", "namespace": "default", "name": f"p{d(i, 8)}"}, "responseStatus": {"code": 200}, "requestReceivedTimestamp": iso(i, "%Y-%m-%dT%H:%M:%S.000001Z"),
          "stageTimestamp": iso(i, "%Y-%m-%dT%H:%M:%S.900001Z")}, "user.username", ("objectRef.name", "requestURI"), ("requestReceivedTimestamp", "stageTimestamp"), "iso8601"),
    Shape("debezium", lambda i: {"before": None, "after": order(i), "source": {"connector": "postgresql", "ts_ms": s(i) * 1000}, "op": "c", "ts_ms": s(i) * 1000}, "customer_id", "product_id", "created_at", "ms"),
    Shape("maxwell", lambda i: {"database": "shop", "table": "orders", "type": op(i, "insert", "update", "delete"), "ts": s(i), "xid": 800 + i, "commit": True,
          "data": {"id": i, "customer_id": d(i, 9), "product_id": 40 + d(i, 8, 2), "total": 2.5 + d(i, 30)}}, "data.customer_id", "data.product_id", "ts", "s",
          "type marks deletes (delete): ts is the time of the change, not of the row"),
    Shape("mongodb change streams", lambda i: {"_id": {"_data": hexa(i)}, "operationType": "delete" if i % 9 == 8 else "insert", "wallTime": {"$date": s(i) * 1000}, "ns": {"db": "shop", "coll": "orders"},
          "documentKey": {"_id": {"$oid": hexa(i, 3)}}, **({} if i % 9 == 8 else {"fullDocument": {"_id": {"$oid": hexa(i, 3)}, "user_id": f"u{d(i, 9)}", "item_id": f"b{d(i, 8, 2)}", "price": 2.5 + d(i, 4)}})},
          "fullDocument.user_id", "fullDocument.item_id", "wallTime.$date", "ms", "operationType marks deletes (delete): those records do not hold the row's fields"),
    Shape("shopify orders", lambda i: {"id": 5_000_000 + i, "admin_graphql_api_id": f"gid://shopify/Order/{i}", "checkout_id": 900_000 + i, "created_at": iso(i, "%Y-%m-%dT%H:%M:%S-05:00", 18_000),
          "updated_at": iso(i, "%Y-%m-%dT%H:%M:%S-05:00", 17_940), "currency": "EUR", "email": f"u{d(i, 9)}@example.org", "name": f"#{1000 + i}", "order_number": 1000 + i, "total_price": f"{d(i, 90)}.50",
          "customer": {"id": 700 + d(i, 9), "email": f"u{d(i, 9)}@example.org"}, "line_items": [{"id": 10_000 + 5 * i + k, "product_id": 40 + d(i, 8, k), "quantity": 1, "price": "3.50"} for k in range(1 + i % 3)]},
          ("customer.id", "customer.email", "email"), "line_items.product_id", "created_at", "iso8601", "line_items has up to 3 elements"),
    Shape("salesforce cdc", lambda i: {"ChangeEventHeader": {"entityName": "Opportunity", "recordIds": [f"006{d(i, 9, 2)}"], "changeType": op(i, "UPDATE", "CREATE", "DELETE"), "changeOrigin": "com/salesforce",
          "transactionKey": uuid(i), "sequenceNumber": 1, "commitTimestamp": s(i) * 1000, "commitNumber": 10**13 + i, "commitUser": f"005{d(i, 9)}", "changedFields": ["StageName", "Amount"]}, "StageName": "Won"},
          "ChangeEventHeader.commitUser", "ChangeEventHeader.recordIds", "ChangeEventHeader.commitTimestamp", "ms", "ChangeEventHeader.changeType marks deletes (DELETE)"),
    Shape("bluesky jetstream", lambda i: {"did": f"did:plc:{hexa(d(i, 9))}", "time_us": s(i) * 1_000_000, "kind": "commit", "commit": {"rev": hexa(i, 3), "operation": "create", "collection": "app.bsky.feed.like",
          "rkey": hexa(i, 5), "cid": f"bafy{hexa(i, 7)}", "record": {"$type": "app.bsky.feed.like", "createdAt": iso(i), "subject": {"cid": f"bafy{hexa(d(i, 8), 9)}", "uri": f"at://p/{d(i, 8)}"}}}},
          "did", "commit.record.subject.uri", ("time_us", "commit.record.createdAt"), "us"),
    Shape("mastodon statuses", lambda i: {"id": str(10**17 + i), "created_at": iso(i, "%Y-%m-%dT%H:%M:%S.000Z"), "in_reply_to_id": str(10**17 + i - 3), "in_reply_to_account_id": str(500 + d(i, 8, 2)), "sensitive": False,
          "visibility": "public", "language": "de", "uri": f"https://m.org/{i}", "url": f"https://m.org/{i}", "replies_count": d(i, 4), "content": f"<p>{i}</p>", "account": {"id": str(500 + d(i, 9)),
          "username": f"u{d(i, 9)}", "acct": f"u{d(i, 9)}@m.org", "bot": False, "created_at": "2020-01-01T00:00:00.000Z", "followers_count": 8}, "media_attachments": []},
          ("account.id", "account.acct", "account.username"), "in_reply_to_account_id", "created_at", "iso8601"),
    Shape("mastodon stream", lambda i: {"event": "update", "stream": ["public"], "payload": json.dumps({"id": str(i), "account": {"id": d(i, 9)}})}, "", "", "", "record", "payload holds JSON as text"),
    Shape("nyc taxi", lambda i: {"VendorID": 1 + i % 2, "tpep_pickup_datetime": iso(i, "%Y-%m-%dT%H:%M:%S"), "tpep_dropoff_datetime": iso(i, "%Y-%m-%dT%H:%M:%S", -600), "passenger_count": 1 + d(i, 3), "trip_distance": d(i, 90) / 10,
          "RatecodeID": 1, "store_and_fwd_flag": "N", "PULocationID": 100 + d(i, 9), "DOLocationID": 100 + d(i, 9, 2), "payment_type": 1 + i % 2, "fare_amount": 5.5 + d(i, 30), "total_amount": 8.5 + d(i, 30)},
          "PULocationID", "DOLocationID", "tpep_pickup_datetime", "iso8601", "the time may also be tpep_dropoff_datetime"),
    Shape("bike trips", lambda i: {"ride_id": hexa(i), "rideable_type": ("classic_bike", "electric_bike")[i % 2], "started_at": iso(i, "%Y-%m-%d %H:%M:%S.100"), "ended_at": iso(i, "%Y-%m-%d %H:%M:%S.100", -600),
          "start_station_name": f"St {d(i, 9)}", "start_station_id": f"JC{d(i, 9):03}", "end_station_name": f"St {d(i, 9, 2)}", "end_station_id": f"JC{d(i, 9, 2):03}", "start_lat": "40.71", "start_lng": "-74.04",
          "end_lat": "40.72", "end_lng": "-74.03", "member_casual": ("member", "casual")[i % 3 == 0]}, "start_station_id", "end_station_id", "started_at", "iso8601"),
    Shape("movielens", lambda i: {"userId": str(d(i, 9)), "movieId": str(d(i, 20, 2)), "rating": f"{1 + d(i, 4)}.5", "timestamp": str(964_982_703 + i)}, "userId", "movieId", "timestamp", "s"),
    Shape("paysim", lambda i: {"step": 1 + i // 9, "type": ("PAYMENT", "TRANSFER")[i % 2], "amount": 9.5 + d(i, 900), "nameOrig": f"C{d(i, 12)}", "oldbalanceOrg": 170.0 + i, "newbalanceOrig": 160.5 + i,
          "nameDest": f"M{d(i, 8, 2)}", "oldbalanceDest": 0.0, "newbalanceDest": 0.0, "isFraud": 0, "isFlaggedFraud": 0}, "nameOrig", "nameDest", "step", "s", "step counts from its own start"),
    Shape("aml transactions", lambda i: {"Timestamp": iso(i, "%Y/%m/%d %H:%M"), "From Bank": 10 + d(i, 5), "Account": f"8{hexa(d(i, 9))}", "To Bank": 11 + d(i, 5, 2), "Account.1": f"8{hexa(d(i, 9, 2))}",
          "Amount Received": 9.5 + d(i, 90), "Receiving Currency": "Euro", "Amount Paid": 9.5 + d(i, 90), "Payment Format": ("Cash", "Wire")[i % 2], "Is Laundering": 0},
          "Account", r"Account\.1", "Timestamp", "", "Timestamp looks like a time, but"),
    Shape("ethereum transfers", lambda i: {"token_address": f"0x{hexa(d(i, 3), 9, 16)}", "from_address": f"0x{hexa(d(i, 9), 3, 16)}", "to_address": f"0x{hexa(d(i, 9, 2), 3, 16)}", "value": str(10**17 + i), "transaction_hash": f"0x{hexa(i, 5, 16)}",
          "log_index": d(i, 99), "block_timestamp": iso(i, "%Y-%m-%d %H:%M:%S UTC"), "block_number": 18_000_000 + i, "block_hash": f"0x{hexa(i // 3, 7, 16)}"},
          "from_address", "to_address", "block_timestamp", "", "block_timestamp looks like a time, but"),
    Shape("call detail records", lambda i: {"cdrRecordType": 1, "globalCallID_callId": 9_000 + i, "dateTimeOrigination": s(i), "callingPartyNumber": f"49{d(i, 9):04}", "originalCalledPartyNumber": f"49{d(i, 8, 2):04}",
          "finalCalledPartyNumber": f"49{d(i, 8, 2):04}", "dateTimeConnect": s(i) + 4, "dateTimeDisconnect": s(i) + 90, "duration": d(i, 90), "origIpAddr": 3_000 + d(i, 4), "destIpAddr": 4_000 + d(i, 4)},
          "callingPartyNumber", ("finalCalledPartyNumber", "originalCalledPartyNumber"), "dateTimeOrigination", "s"),
    Shape("slack events", lambda i: {"token": "x", "team_id": "T1", "api_app_id": "A1", "event": {"type": "message", "user": f"U{d(i, 9)}", "text": f"hello {i}", "ts": f"{s(i)}.000200", "channel": f"C{d(i, 8, 2)}",
          "event_ts": f"{s(i)}.000200", "channel_type": "channel", "client_msg_id": uuid(i)}, "type": "event_callback", "event_id": f"Ev{hexa(i)}", "event_time": s(i)},
          "event.user", "event.channel", ("event_time", "event.ts", "event.event_ts"), "s"),
    Shape("ses mail", lambda i: {"eventType": ("Delivery", "Open")[i % 2], "mail": {"timestamp": iso(i, "%Y-%m-%dT%H:%M:%S.100Z"), "source": f"a{d(i, 9)}@shop.org", "sendingAccountId": "1", "messageId": hexa(i),
          "destination": [f"r{d(i, 8, k)}@example.org" for k in range(1 + i % 2)], "headersTruncated": False}}, "mail.source", "mail.destination", "mail.timestamp", "iso8601", "mail.destination has up to 2 elements"),
    Shape("iot by gateway", lambda i: {"deviceId": f"dev{d(i, 9)}", "gatewayId": f"gw{d(i, 5, 2)}", "ts": s(i) * 1000, "temperature": 20 + d(i, 50) / 10, "humidity": d(i, 90), "battery": 3_000 + d(i, 99)},
          "deviceId", "gatewayId", "ts", "ms"),
    Shape("iot without a second key", lambda i: {"device": f"dev{d(i, 9)}", "ts": s(i) * 1000, "temperature": 20 + d(i, 50) / 10, "humidity": d(i, 90), "pressure": 1_000 + d(i, 50)},
          "device", "", "ts", "ms", "no field looks like dst"),
    Shape("ad clicks", lambda i: {"ip": 80_000 + d(i, 12), "app": 1 + d(i, 7, 2), "device": 1, "os": 13 + d(i, 6), "channel": 100 + d(i, 8, 3), "click_time": iso(i, "%Y-%m-%d %H:%M:%S"), "attributed_time": None, "is_attributed": 0},
          "ip", ("app", "channel"), "click_time", "iso8601"),
    Shape("spotify history of one person", lambda i: {"ts": iso(i), "username": "ann", "platform": "ios", "ms_played": d(i, 200_000), "conn_country": "DE", "ip_addr_decrypted": ip(i, 2), "master_metadata_track_name": f"T{d(i, 9)}",
          "master_metadata_album_artist_name": f"A{d(i, 6)}", "spotify_track_uri": f"spotify:track:{d(i, 9)}", "reason_start": ("trackdone", "clickrow")[i % 2], "shuffle": i % 3 == 0, "skipped": None},
          "username", ("spotify_track_uri", "master_metadata_track_name"), "ts", "iso8601", "username (src) is the same in all records"),
    Shape("listenbrainz", lambda i: {"inserted_at": s(i) + 9, "listened_at": s(i), "user_name": f"u{d(i, 9)}", "track_metadata": {"artist_name": f"A{d(i, 6)}", "track_name": f"T{d(i, 9, 2)}", "release_name": f"R{d(i, 6)}",
          "additional_info": {"recording_mbid": uuid(d(i, 9, 2)), "duration_ms": 180_000 + d(i, 9)}}}, "user_name", ("track_metadata.additional_info.recording_mbid", "track_metadata.track_name"), "listened_at", "s"),
    Shape("lichess games", lambda i: {"id": hexa(i, 3, 8), "rated": i % 4 > 0, "variant": "standard", "speed": ("blitz", "rapid")[i % 2], "createdAt": s(i) * 1000, "lastMoveAt": s(i) * 1000 + 90_000, "status": "mate",
          "players": {"white": {"user": {"name": f"P{d(i, 9)}", "id": f"p{d(i, 9)}"}, "rating": 1500 + d(i, 300)}, "black": {"user": {"name": f"P{d(i, 9, 2)}", "id": f"p{d(i, 9, 2)}"}, "rating": 1500 + d(i, 300)}}, "winner": "white"},
          ("players.white.user.id", "players.white.user.name"), ("players.black.user.id", "players.black.user.name"), "createdAt", "ms"),
    Shape("retailrocket", lambda i: {"timestamp": str(s(i) * 1000), "visitorid": str(d(i, 9)), "event": ("view", "addtocart")[i % 6 == 0], "itemid": str(900 + d(i, 9, 2)), "transactionid": None}, "visitorid", "itemid", "timestamp", "ms"),
    Shape("h&m", lambda i: {"t_dat": iso(i, "%Y-%m-%d"), "customer_id": hexa(d(i, 9), 3, 16), "article_id": f"0{663713001 + d(i, 9, 2)}", "price": f"0.0{5 + d(i, 4)}", "sales_channel_id": "2"}, "customer_id", "article_id", "t_dat", "iso8601"),
    Shape("reddit comments", lambda i: {"id": hexa(i, 3, 7), "author": "[deleted]" if i % 7 == 0 else f"u{d(i, 9)}", "subreddit": f"r{d(i, 8, 2)}", "subreddit_id": f"t5_{d(i, 8, 2)}", "link_id": f"t3_{d(i, 20, 3)}", "parent_id": f"t1_{d(i, 99)}",
          "created_utc": s(i), "retrieved_on": s(i) + 90, "score": d(i, 30), "body": f"text {i}", "controversiality": 0}, "author", ("subreddit", "subreddit_id", "link_id"), "created_utc", "s", "author (src) is '[deleted]' in 9 of 60"),
    Shape("jodie wikipedia", lambda i: {"user_id": str(d(i, 9)), "item_id": str(d(i, 9, 2)), "timestamp": f"{36 * i}.0", "state_label": "0", "f0": f"{d(i, 99) / 100}"}, "user_id", "item_id", "timestamp", "s", "timestamp counts from its own start"),
    Shape("lanl authentication", lambda i: {"time": 1 + 3 * i, "source user": f"U{d(i, 9)}@DOM1", "destination user": f"U{d(i, 9, 2)}@DOM1", "source computer": f"C{d(i, 9)}", "destination computer": f"C{d(i, 9, 3)}", "authentication type": "NTLM",
          "logon type": "Network", "orientation": "LogOn", "success": "Success"}, ("source user", "source computer"), ("destination user", "destination computer"), "time", "s", "time counts from its own start"),
    Shape("yelp reviews", lambda i: {"review_id": hexa(i), "user_id": hexa(d(i, 9), 3), "business_id": hexa(d(i, 9, 2), 5), "stars": 1.0 + d(i, 5), "useful": d(i, 3), "funny": 0, "cool": 0, "text": "very good " * 20, "date": iso(i, "%Y-%m-%d %H:%M:%S")},
          "user_id", "business_id", "date", "iso8601"),
    Shape("elastic common schema", lambda i: {"@timestamp": iso(i, "%Y-%m-%dT%H:%M:%S.100Z"), "agent": {"name": "fb", "id": uuid(1)}, "event": {"action": "network_flow", "start": iso(i, back=3), "end": iso(i), "duration": d(i, 10**9)},
          "source": {"ip": ip(i, 8), "port": 40_000 + d(i, 99), "bytes": d(i, 9000)}, "destination": {"ip": ip(i, 6, 2), "port": 443, "bytes": d(i, 9000)}, "network": {"transport": "tcp"}, "host": {"name": "h1"}},
          "source.ip", "destination.ip", "@timestamp", "iso8601"),
    Shape("fivetran", lambda i: {"order_id": i, "buyer_id": d(i, 9), "sku": f"S{d(i, 8, 2)}", "ordered_at": iso(i), "_fivetran_deleted": i % 7 == 6, "_fivetran_synced": iso(i, "%Y-%m-%dT%H:%M:%S.100Z", -90)},
          "buyer_id", "sku", "ordered_at", "iso8601", "_fivetran_deleted marks deletes (True)", {"where": {"_fivetran_deleted": [True]}}),
    Shape("dynamodb streams", lambda i: {"eventID": hexa(i), "eventName": ("INSERT", "MODIFY")[i % 5 == 0], "eventVersion": "1.1", "eventSource": "aws:dynamodb", "awsRegion": "eu-west-1", "dynamodb": {"ApproximateCreationDateTime": s(i),
          "Keys": {"pk": {"S": hexa(i, 3)}}, "NewImage": {"user_id": {"S": f"u{d(i, 9)}"}, "product_id": {"S": f"p{d(i, 8, 2)}"}}, "SequenceNumber": str(10**20 + i), "SizeBytes": 59}},
          "dynamodb.NewImage.user_id.S", "dynamodb.NewImage.product_id.S", "dynamodb.ApproximateCreationDateTime", "s"),
    Shape("goldengate", lambda i: {"table": "SHOP.ORDERS", "op_type": op(i, "I", "U", "D"), "op_ts": iso(i, "%Y-%m-%d %H:%M:%S.000000"), "current_ts": iso(i, "%Y-%m-%dT%H:%M:%S.900000"), "pos": f"{i:020}",
          ("before" if i % 7 == 6 else "after"): {"CUSTOMER_ID": d(i, 9), "PRODUCT_ID": d(i, 8, 2), "CREATED_AT": iso(i)}},
          "after.CUSTOMER_ID", "after.PRODUCT_ID", "after.CREATED_AT", "iso8601", "op_type marks deletes (D)", {"where": {"op_type": ["D"]}, "fields": {"src": "before.CUSTOMER_ID", "dst": "before.PRODUCT_ID", "time": "before.CREATED_AT"}}),
    Shape("canal", lambda i: {"data": [{"id": str(i), "user_id": str(d(i, 9)), "goods_id": f"g{d(i, 8, 2)}"}] * (1 + i % 2), "database": "shop", "table": "orders", "es": s(i) * 1000, "ts": s(i) * 1000 + 3, "id": i, "isDdl": False,
          "type": ("INSERT", "DELETE")[i % 6 == 5], "pkNames": ["id"]}, "data.user_id", "data.goods_id", ("ts", "es"), "ms", "data has up to 2 elements, each an edge of its own"),
    Shape("venmo", lambda i: {"id": hexa(i), "date_created": iso(i, "%Y-%m-%dT%H:%M:%S"), "actor": {"username": f"a{d(i, 9)}", "id": str(d(i, 9))}, "target": {"user": {"username": f"b{d(i, 9, 2)}", "id": str(d(i, 9, 2))}, "type": "user"},
          "note": f"n{i}"}, ("actor.id", "actor.username"), ("target.user.id", "target.user.username"), "date_created", "iso8601"),
    Shape("jira webhooks", lambda i: {"timestamp": s(i) * 1000, "webhookEvent": "jira:issue_updated", "user": {"accountId": f"a{d(i, 9)}", "displayName": f"U{d(i, 9)}"}, "issue": {"id": str(d(i, 12, 2)), "key": f"P-{d(i, 12, 2)}",
          "fields": {"priority": {"name": "High"}, "created": iso(d(i, 12, 2))}}}, "user.accountId", ("issue.id", "issue.key"), "timestamp", "ms"),
    Shape("klaviyo", lambda i: {"type": "event", "id": hexa(i), "attributes": {"timestamp": s(i), "event_properties": {"ProductID": f"p{d(i, 8, 2)}", "$value": 2.5}, "datetime": iso(i)}, "relationships": {
          "profile": {"data": {"type": "profile", "id": f"pr{d(i, 9)}"}}, "metric": {"data": {"type": "metric", "id": f"m{d(i, 3)}"}}}}, "relationships.profile.data.id", "attributes.event_properties.ProductID",
          "attributes.timestamp", "s"),
    Shape("amazon reviews", lambda i: {"rating": float(1 + d(i, 5)), "title": f"t{i}", "text": "ok " * 60, "images": [], "asin": f"B{d(i, 9, 3)}", "parent_asin": f"B{d(i, 9, 2)}", "user_id": f"A{d(i, 9)}", "timestamp": s(i) * 1000,
          "helpful_vote": 0, "verified_purchase": True}, "user_id", ("asin", "parent_asin"), "timestamp", "ms"),
    Shape("tickets that never come back", lambda i: {"ticket_id": i, "requester_id": d(i, 9), "assignee_id": d(i, 6, 2), "created_at": iso(i), "status": "open"}, "requester_id", ("ticket_id", "assignee_id"), "created_at", "iso8601",
          "dst may also be assignee_id"),
]
