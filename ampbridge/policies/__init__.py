"""What runs in which dtype: policies, schedules of them, the op table and the frameworks' op lists."""
