-- Delays of departures by airline and six hours of flight time, from topic to topic:
-- the flights of scripts/demo, joined with a table of airlines, in windows of event time.
--
--   ./scripts/demo --into 127.0.0.1:9092
--   shmbroker topic create delays -p 3
--   shmbroker pipeline run examples/flights.sql
--
-- A window is written when it is over: when a flight is due that is a day later.

CREATE STREAM flights (
    carrier string, origin string, dest string, dep_delay double, distance double,
    time_hour timestamp
) FROM TOPIC flights WITH (watermark = 'time_hour 1 day');

CREATE TEMPORARY VIEW airlines (carrier string, name string)
    USING csv OPTIONS (path '${here}/airlines.csv', header 'true');

INSERT INTO TOPIC `delays`
SELECT flights.carrier AS key, airlines.name AS airline, window.start AS since,
       count(*) AS flights, count(dep_delay) AS departed, round(avg(dep_delay), 2) AS delay
FROM flights JOIN airlines ON flights.carrier = airlines.carrier
GROUP BY flights.carrier, airlines.name, window(time_hour, '6 hours');
