"""The audit report: one HTML page that needs no network.

The data passes through these modules:

    sections                     what is counted of the tables and of the findings, as data
    groups                       counts all sections in one Spark query with a bounded number of rows; percentiles
    facts                        the collected results, and what was checked; no Spark from here on
    baseline, verdict            what is new since the last audit, the overall result
    cards                        broken rules of the page
    charts, topology             charts as SVG
    page, formats                the HTML page with its tables, limited in size; SARIF, JUnit, GitHub
"""
