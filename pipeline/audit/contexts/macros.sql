-- What the contexts and the conditions of the catalogue share. `settings` is a map of thresholds: 'CH-11.limit_per_minute'.
CREATE MACRO setting(name) AS getvariable('settings')[name];
CREATE MACRO never() AS 9223372036854775807::BIGINT;
CREATE MACRO compact(items) AS list_filter(items, lambda item: item IS NOT NULL);
CREATE MACRO earliest(line, condition) AS arg_min(line, line.frame_no) FILTER (WHERE condition);
-- An object of a VARIANT as JSON; null for other values.
CREATE MACRO json_object_of(value) AS CASE WHEN variant_typeof(value) LIKE 'OBJECT%' THEN TRY_CAST(value AS JSON) END;
-- Bytes as text: what is well-formed UTF-8 (RFC 3629, section 4) as it is, and, if not all is, each other byte and each
-- backslash escaped by the rule of codec.text. Pieces are found in the hexadecimal digits: runs of ASCII characters
-- without the backslash, characters of two to four bytes, single bytes.
CREATE MACRO utf8_text(bytes) AS coalesce(TRY(decode(bytes)), array_to_string(list_transform(
    regexp_extract_all(hex(bytes),
        '(?:[0-46-7][0-9A-F]|5[0-9ABD-F])+|(?:C[2-9A-F]|D[0-9A-F])[89AB][0-9A-F]'
        || '|E0[AB][0-9A-F][89AB][0-9A-F]|(?:E[1-9A-CEF])(?:[89AB][0-9A-F]){2}|ED[89][0-9A-F][89AB][0-9A-F]'
        || '|F0[9AB][0-9A-F](?:[89AB][0-9A-F]){2}|F[1-3](?:[89AB][0-9A-F]){3}|F48[0-9A-F](?:[89AB][0-9A-F]){2}'
        || '|[0-9A-F]{2}'),
    lambda piece: CASE WHEN length(piece) = 2 AND (piece >= '80' OR piece = '5C') THEN '\x' || lower(piece)
                       ELSE decode(unhex(piece)) END), ''));
-- One string with blanks in the classic family, an array in the others.
CREATE MACRO strings(argument) AS
    CASE WHEN variant_typeof(argument) LIKE 'ARRAY%' THEN TRY_CAST(argument AS VARCHAR[])
         WHEN variant_typeof(argument) = 'BLOB' THEN string_split(utf8_text(TRY_CAST(argument AS BLOB)), ' ')
         ELSE string_split(TRY_CAST(argument AS VARCHAR), ' ') END;
CREATE MACRO is_classic(version) AS version IN ('0-8', '0-9', '0-9-1');
-- Methods that carry or settle messages, by their sender. A server settles only with confirms, an extension of 0-9-1.
CREATE MACRO carries(name, sender, version) AS
    name IN ('basic.publish', 'basic.reject') AND sender = 'client'
    OR name IN ('basic.deliver', 'basic.get-ok') AND sender = 'server'
    OR name = 'basic.ack' AND (sender = 'client' OR version = '0-9-1');
CREATE MACRO offered(versions, side) AS
    string_split(list_filter(versions, lambda v: v LIKE side)[1], ' ')[2];
-- How often the channel of a row was opened so far.
CREATE MACRO channel_incarnations(name, connection_id, channel, frame_no) AS
    count(CASE name WHEN 'channel.open' THEN 1 END)
        OVER (PARTITION BY connection_id, channel ORDER BY frame_no ROWS UNBOUNDED PRECEDING);
-- A value of a VARIANT as text: containers as JSON.
CREATE MACRO text_of(value) AS
    CASE WHEN variant_typeof(value) LIKE 'OBJECT%' OR variant_typeof(value) LIKE 'ARRAY%'
         THEN CAST(TRY_CAST(value AS JSON) AS VARCHAR) ELSE TRY_CAST(value AS VARCHAR) END;
-- A time in UTC, as JSON has it.
CREATE MACRO moment_text(moment) AS strftime(moment, '%Y-%m-%dT%H:%M:%S.%gZ');
-- JSON without the keys whose value is null, at any depth.
CREATE MACRO without_nulls(value) AS json_merge_patch('{}', value)::VARCHAR;
