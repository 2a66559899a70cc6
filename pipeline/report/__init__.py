"""The audit report: one HTML page that needs no network.

The data passes through these modules:

    sections                     what is counted of the tables and of the findings, as data
    grouped_counts               counts all sections in one Spark query with a bounded number of rows; percentiles
    facts                        the collected results, and what was checked; no Spark from here on
    baseline                     what is new since the last audit
    cards                        broken rules of the page
    charts, topology             charts as SVG
    formats                      the result with its verdict; JSON, SARIF, JUnit, GitHub
    page                         the HTML page with its tables, limited in size
"""
