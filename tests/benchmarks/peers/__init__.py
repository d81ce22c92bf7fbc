"""Other crawlers on the same task: from one start page, fetch every page of its host that links lead to, keep nothing.

Each program takes the start URL, ignores robots.txt and waits for nobody (delay 0), and prints one line of JSON with
the pages it fetched (status 200) and its versions. They run in an environment of their own (requirements.txt) and
import nothing of this project.
"""
