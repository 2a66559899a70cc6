"""The audit report: what a capture shows, on one page of HTML that needs no network.

The way of the data:

    questions, evidence   what is asked of the tables and of the findings: sections, as data
    groups                all of them answered by one Spark query with a bounded number of rows
    facts                 the answers, collected; from here on there is no Spark
    baseline, verdict     what is new since the last audit; how bad it is
    shown, tables, rules  sections and findings as the page draws them
    latency, charts       percentiles; SVG, drawn ahead of time
    text, wireshark       strings from the wire made harmless; display filters
    page                  the templates filled in, under a limit of size
"""
